#!/bin/sh
# Runs `attngen check` on the GPU under compute-sanitizer (memcheck, racecheck, initcheck, synccheck): its grid of small awkward shapes, for causal at
# D 64, 128, 256.
#
#   tools/gpu_sanitize.sh [ATTNGEN]      default: build/attngen
#
# Exit status 0: every tool found nothing.
set -u
cd "$(dirname "$0")/.." || exit 1
attngen=${1:-build/attngen}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$sanitizer" ]; then
    echo "gpu_sanitize: compute-sanitizer is not on this machine" >&2
    exit 1
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

for d in 64 128 256; do
    for tool in memcheck racecheck initcheck synccheck; do
        log=$work/log
        if "$sanitizer" --tool "$tool" --error-exitcode 9 "$attngen" check causal -D "D=$d" --gpu >"$log" 2>&1; then
            echo "ok    causal D $d $tool"
        else
            echo "FAIL  causal D $d $tool"
            tail -n 40 "$log"
            failed=1
        fi
    done
done
exit $failed
