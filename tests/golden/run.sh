#!/bin/sh
# Compares what the compiler prints with the files here, or rewrites them.
#   tests/golden/run.sh [--update] [ATTNGEN]      ATTNGEN: the binary, default $ATTNGEN or build/attngen
# A golden is FOLDER/NAME.EXT or NAME.ARCH.EXT for a shipped spec NAME, printed for ARCH, without it for sm_90, or for sm_90a (timelines):
#   NAME.math.txt  emit --as math      NAME.tile.txt  emit --as tile      NAME.cu  emit --as cu      NAME.timeline.txt  show --timeline
#   docs/ has two more, of causal for sm_90a: example_sm90a.cu and timeline_d128.svg
set -u
update=false
[ "${1:-}" = --update ] && update=true && shift
here=$(cd "$(dirname "$0")" && pwd)
attngen=${1:-${ATTNGEN:-$here/../../build/attngen}}
new=$(mktemp) || exit 1
trap 'rm -f "$new"' EXIT

total=0 failed=0
for golden in "$here"/*/*.math.txt "$here"/*/*.tile.txt "$here"/*/*.cu "$here"/*/*.timeline.txt "$here"/../../docs/example_sm90a.cu "$here"/../../docs/timeline_d128.svg; do
    [ -e "$golden" ] || continue
    file=$(basename "$golden")
    name=${file%%.*} kind=${file#*.} arch=sm_90
    case $kind in
    sm_*) arch=${kind%%.*} kind=${kind#*.} ;;
    esac
    total=$((total + 1))
    case $file in
    example_sm90a.cu) set -- emit causal -a sm_90a ;;
    timeline_d128.svg) set -- show causal -a sm_90a --timeline --svg ;;
    *.timeline.txt) set -- show "$name" -a sm_90a --timeline ;;
    *) set -- emit "$name" -a "$arch" --as "${kind%.txt}" ;;
    esac
    if ! "$attngen" "$@" >"$new"; then
        echo "golden: $file: attngen failed" >&2
        failed=$((failed + 1))
    elif $update; then
        cmp -s "$new" "$golden" || { cp "$new" "$golden" && echo "golden: $file: rewritten"; }
    elif ! diff -u "$golden" "$new" >&2; then
        echo "golden: $file: differs; if that is meant, run tests/golden/run.sh --update" >&2
        failed=$((failed + 1))
    fi
done
echo "$((total - failed)) passed, $failed failed"
[ $total -gt 0 ] && [ $failed -eq 0 ]
