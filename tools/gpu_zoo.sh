#!/usr/bin/env bash
# `attngen check` of every shipped spec on the GPU, on both kernel paths, several at a time; and of random specs.
#
#   tools/gpu_zoo.sh [ATTNGEN [SPEC...]]      default: build/attngen, every shipped spec
#
# Environment:
#   ZOO_ARCHS    "sm_90 sm_90a"    ZOO_DIMS    "64 128", head dims     ZOO_JOBS      one less than there are processors
#   ZOO_CHECK    "--gpu", options of check; "--no-gpu" for a machine without one
#   ZOO_SECONDS  120, for one spec                                     ZOO_RANDOM    a folder of random specs (build/tests/fuzz_specs --write FOLDER), D 64
# A spec that is not possible on a target, or a random one for whose default schedule registers are too few, is skipped with its reason.  The last line counts; exit status 0: none failed.
set -u
attngen=${1:-build/attngen}
shift $(($# > 0))
export attngen ZOO_CHECK=${ZOO_CHECK:---gpu} ZOO_SECONDS=${ZOO_SECONDS:-120}
specs=("$@")
[ $# = 0 ] && mapfile -t specs < <("$attngen" list specs)

one() { # SPEC ARCH D
    local out code last
    out=$(timeout "$ZOO_SECONDS" "$attngen" check "$1" -a "$2" -D D="$3" $ZOO_CHECK 2>&1)
    code=$?
    last=$(tail -n 1 <<<"$out")
    case $code in
    0) echo "ok    $1 $2 D $3: $last" ;;
    4) echo "skip  $1 $2 D $3: $(grep -m 1 error <<<"$out")" ;;
    124) echo "FAIL  $1 $2 D $3: not done after $ZOO_SECONDS s" ;;
    *)
        if [ $code = 5 ] && [[ $1 == */random_* ]] && grep -q 'spills .* bytes\|has too few registers' <<<"$out"; then
            echo "skip  $1 $2 D $3: $last"
        else
            echo "FAIL  $1 $2 D $3: exit $code: $(grep -v '^ok' <<<"$out" | tail -n 8)"
        fi
        ;;
    esac
}
export -f one

{
    for arch in ${ZOO_ARCHS:-sm_90 sm_90a}; do
        for d in ${ZOO_DIMS:-64 128}; do
            for spec in "${specs[@]}"; do echo "$spec $arch $d"; done
        done
        [ -n "${ZOO_RANDOM:-}" ] && find "$ZOO_RANDOM" -name 'random_*.yaml' -printf "%p $arch 64\n"
    done
} | xargs -P "${ZOO_JOBS:-$(($(nproc) > 1 ? $(nproc) - 1 : 1))}" -L 1 bash -c 'one "$@"' _ | {
    ok=0 failed=0 skipped=0
    while IFS= read -r line; do
        case $line in
        ok*) ok=$((ok + 1)) ;;
        skip*) skipped=$((skipped + 1)) && echo "$line" ;;
        FAIL*) failed=$((failed + 1)) && echo "$line" ;;
        *) echo "$line" ;;
        esac
    done
    echo "$ok passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
