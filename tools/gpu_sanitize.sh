#!/bin/sh
# Runs `attngen check` on the GPU under compute-sanitizer (memcheck, racecheck, initcheck, synccheck): its grid of small awkward shapes, at D 64, 128, 256 for causal, at D 64
# and 128 for another spec.
#
#   tools/gpu_sanitize.sh [ATTNGEN [ARCH [SPEC [OPTION]...]]]      default: build/attngen, the arch of the GPU, causal; options of `attngen check`
#   tools/gpu_sanitize.sh build/attngen sm_90a nsa -D group=16
#
# Exit status 0: every tool found nothing.
set -u
cd "$(dirname "$0")/.." || exit 1
attngen=${1:-build/attngen}
arch=${2:+-a $2}
spec=${3:-causal}
if [ $# -gt 3 ]; then shift 3; else set --; fi
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$sanitizer" ]; then
    echo "gpu_sanitize: compute-sanitizer is not on this machine" >&2
    exit 1
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

check() { # D TOOL OPTION...
    d=$1 tool=$2 log=$work/$1-$2
    shift 2
    if "$sanitizer" --tool "$tool" --error-exitcode 9 "$attngen" check "$spec" $arch -D "D=$d" "$@" --gpu >"$log" 2>&1; then
        echo "ok    $spec D $d $tool: $(tail -n 1 "$log")"
    else
        echo "FAIL  $spec D $d $tool"
        tail -n 40 "$log"
        touch "$work/failed"
    fi
}

for d in 64 128 256; do
    [ "$spec" != causal ] && [ $d = 256 ] && continue
    "$attngen" check "$spec" $arch -D "D=$d" "$@" --gpu >/dev/null 2>&1 # fills the cache, so that the tools do not slow NVRTC down
    for tool in memcheck racecheck initcheck synccheck; do check $d $tool "$@" & done
done
wait
[ ! -e "$work/failed" ]
