#!/bin/bash
# Runs `attngen emit` on every NAME.yaml of spec/ (as the spec) and schedule/ (as the schedule of the shipped spec `causal`), and compares
# stderr with NAME.err to the letter and the exit code with 3, or with what NAME.exit says.  The target is sm_80, or what NAME.arch says.
# usage: tests/errors/run.sh [--update]     --update rewrites the .err files
# ATTNGEN: the binary, default build/attngen
cd "$(dirname "$0")/../.." || exit 2
attngen=${ATTNGEN:-build/attngen}
[ -x "$attngen" ] || { echo "$attngen is not there: build first"; exit 2; }
passed=0
failed=0
for file in tests/errors/{spec,schedule}/*.yaml; do
    [ -e "$file" ] || continue
    case $file in
    */spec/*) arguments=("$file") ;;
    */schedule/*) arguments=(causal -s "$file") ;;
    esac
    base=${file%.yaml}
    want_exit=3
    [ -e "$base.exit" ] && want_exit=$(<"$base.exit")
    arch=sm_80
    [ -e "$base.arch" ] && arch=$(<"$base.arch")
    got=$("$attngen" emit "${arguments[@]}" -a "$arch" 2>&1 >/dev/null; echo "exit $?")
    got_exit=${got##*exit }
    got=${got%exit *}
    [ "$1" = --update ] && printf '%s' "$got" >"$base.err"
    if [ "$got_exit" = "$want_exit" ] && difference=$(diff "$base.err" <(printf '%s' "$got")); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s: exit code %s, expected %s\n%s\n' "$file" "$got_exit" "$want_exit" "$difference"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
