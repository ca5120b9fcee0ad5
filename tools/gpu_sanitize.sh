#!/bin/sh
# Runs `attngen check` on the GPU under compute-sanitizer (memcheck, racecheck, initcheck, synccheck): its grid of small awkward shapes, for causal at
# D 64, 128, 256.
#
#   tools/gpu_sanitize.sh [ATTNGEN [ARCH]]      default: build/attngen, the arch of the GPU
#
# Exit status 0: every tool found nothing.
set -u
cd "$(dirname "$0")/.." || exit 1
attngen=${1:-build/attngen}
arch=${2:+-a $2}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$sanitizer" ]; then
    echo "gpu_sanitize: compute-sanitizer is not on this machine" >&2
    exit 1
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

check() { # D TOOL
    log=$work/$1-$2
    if "$sanitizer" --tool "$2" --error-exitcode 9 "$attngen" check causal $arch -D "D=$1" --gpu >"$log" 2>&1; then
        echo "ok    causal D $1 $2: $(tail -n 1 "$log")"
    else
        echo "FAIL  causal D $1 $2"
        tail -n 40 "$log"
        touch "$work/failed"
    fi
}

for d in 64 128 256; do
    "$attngen" check causal $arch -D "D=$d" --gpu >/dev/null 2>&1 # fills the cache, so that the tools do not slow NVRTC down
    for tool in memcheck racecheck initcheck synccheck; do check $d $tool & done
done
wait
[ ! -e "$work/failed" ]
