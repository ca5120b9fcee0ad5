#!/usr/bin/env bash
# The command line, from outside: exit codes, messages to the letter, files.  ATTNGEN names the binary; the last line sums up.
set -u
cd "$(dirname "$0")/../.." || exit 1
bin=${ATTNGEN:-build/attngen}
diff=build/tests/npydiff
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export ATTNGEN_CACHE_DIR=$tmp/cache
passed=0 failed=0 skipped=0

ok() { passed=$((passed + 1)); }
no() { failed=$((failed + 1)) && echo "FAILED: $1"; }
is() { if [ "$2" = "$3" ]; then ok; else no "$1: expected \`$3\`, got \`$2\`"; fi; }

# t NAME CODE STDERR ARGUMENT...: exit code, and the first line of stderr ("" : not looked at; a trailing * matches anything).
t() {
    local name=$1 code=$2 want=$3 got err
    shift 3
    "$bin" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    err=$(head -n 1 "$tmp/err")
    if [ $got != "$code" ]; then no "$name: exit $got, expected $code: $err"; return; fi
    # shellcheck disable=SC2053
    case $want in
    "") ok ;;
    *\*) if [[ $err == "${want%\*}"* ]]; then ok; else no "$name: stderr is: $err"; fi ;;
    *) is "$name" "$err" "$want" ;;
    esac
}

# ---- usage
t "no verb" 2 "attngen: an attention compiler.*"
t "unknown verb" 2 "attngen: no verb \`emitt\` (did you mean \`emit\`?); \`attngen help\` lists them" emitt
t "help" 0 "" help
t "help of a verb" 0 "" help emit
t "help of no verb" 2 "attngen: no verb \`zzzzzz\`; \`attngen help\` lists them" help zzzzzz
t "version" 0 "" --version
is "version text" "$(cat "$tmp/out")" "attngen 0.1.0"
t "unknown option" 2 "attngen: emit has no option \`--shedule\` (did you mean \`--schedule\`?); see \`attngen help emit\`" emit causal --shedule x
t "unknown letter" 2 "attngen: emit has no option \`-x\`; see \`attngen help emit\`" emit causal -x
t "no value" 2 "attngen: --schedule needs a value: SCHED" emit causal -s
t "flag with a value" 2 "attngen: --json takes no value" bench causal --json=1
t "no spec" 2 "attngen: usage: attngen emit SPEC [OPTION]...; see \`attngen help emit\`" emit
t "two specs" 2 "attngen: unexpected argument \`dense\`; usage: attngen emit SPEC" emit causal dense
t "bad artefact" 2 "attngen: --as is one of spec math tile schedule cu ptx cubin, not \`titel\` (did you mean \`tile\`?)" emit causal --as titel
t "bad number" 2 "attngen: --seed needs a whole number, not \`1x\`" check causal --seed 1x
t "after without an IR" 2 "attngen: --after goes with --as math or --as tile" emit causal --after tile
t "gpu and no gpu" 2 "attngen: --gpu and --no-gpu exclude each other" check causal --gpu --no-gpu
t "bad list" 2 "attngen: list takes specs|schedules|archs, not \`spec\` (did you mean \`specs\`?)" list spec
t "bad define" 2 "attngen: -D needs NAME=VALUE, not \`D\`" emit causal -D D
t "bad dtype" 2 "attngen: -D dtype is one of f16 bf16, not \`f64\`" emit causal -D dtype=f64
t "define twice" 2 "attngen: -D D is given twice" emit causal -D D=64 -D D=128
t "unknown shipped spec" 2 "attngen: no spec \`casual\` is shipped (did you mean \`causal\`?); \`attngen list specs\` has them, and a file is given with its path, e.g. ./casual.yaml" emit casual
t "unknown shipped schedule" 2 "attngen: no schedule \`mma_d12\` is shipped (did you mean \`mma_d128\`?)*" emit causal -s mma_d12
t "unknown arch" 2 "attngen: unknown architecture \`sm_91\` (did you mean \`sm_90\`?)" emit causal -a sm_91
t "missing file" 6 "attngen: ./nothing.yaml: No such file or directory" emit ./nothing.yaml
t "both from stdin" 2 "attngen: the spec and the schedule cannot both come from the standard input" emit - -s -

# ---- all loop orders of listed blocks, for groups that would take the other
printf 'schema: attngen.schedule/1\nloop: {lists: query}\n' >"$tmp/query.yaml"
printf 'schema: attngen.schedule/1\nloop: {lists: block}\n' >"$tmp/block.yaml"
t "lists by query" 0 "" check nsa -s "$tmp/query.yaml" -a sm_90 -D D=32 -D group=2 --no-gpu
t "lists by block" 0 "" check nsa -s "$tmp/block.yaml" -a sm_90 -D D=32 -D group=16 --no-gpu
printf 'schema: attngen.schedule/1\nloop: {lists: union}\n' >"$tmp/union.yaml"
t "lists united" 0 "" check nsa -s "$tmp/union.yaml" -a sm_90 -D D=32 -D group=16 --no-gpu
t "lists of several queries united" 4 "$tmp/union.yaml:2:15: error: loop.lists: union takes a list for each query, shared by 4, 8, 16 or 32 query heads, and tiles of 64 rows with up to 512 entries: write query*" emit block_sparse -s "$tmp/union.yaml" -a sm_90
t "lists of several queries by block" 4 "$tmp/block.yaml:2:15: error: loop.lists: block takes a list for each query and blocks of up to 128 keys: write query" emit block_sparse -s "$tmp/block.yaml" -a sm_90

printf 'schema: attngen.schedule/1\nloop: {lists: union, forced: apart}\n' >"$tmp/both.yaml"
t "forced blocks apart from a union" 4 "$tmp/both.yaml:2:30: error: loop.forced: apart does not go with loop.lists: union, which reads a block that several queries list once: write listed*" emit nsa -s "$tmp/both.yaml" -a sm_90 -D D=32 -D group=16
for lists in query block; do
  printf 'schema: attngen.schedule/1\nloop: {lists: %s, forced: listed}\n' $lists >"$tmp/listed.yaml"
  t "forced blocks listed, by $lists" 0 "" check nsa -s "$tmp/listed.yaml" -a sm_90 -D D=32 -D group=4 --no-gpu
done

# ---- emit
for as in spec math tile schedule cu; do t "emit $as" 0 "" emit causal -a sm_90 --as $as; done
t "arch is named" 0 "attngen: taking sm_*" emit causal
t "emit to a file" 0 "" emit causal -a sm_90 -D D=64 -o "$tmp/a.cu"
"$bin" emit causal -a sm_90 -DD=64 >"$tmp/b.cu" 2>/dev/null
is "a file and stdout are the same" "$(cmp "$tmp/a.cu" "$tmp/b.cu" 2>&1)" ""
is "nothing temporary is left" "$(find "$tmp" -name 'a.cu.*')" ""
"$bin" emit - -a sm_90 -D D=64 <specs/causal.yaml >"$tmp/c.cu" 2>/dev/null
is "stdin" "$(tail -n 5 "$tmp/c.cu")" "$(tail -n 5 "$tmp/a.cu")"
is "no include" "$(grep -c '#include' "$tmp/a.cu")" 0
t "folder is missing" 6 "attngen: $tmp/no/a.cu: No such file or directory" emit causal -a sm_90 -o "$tmp/no/a.cu"
printf 'attention: x\nmask: k <= \n' >"$tmp/bad.yaml"
echo keep >"$tmp/kept.cu"
t "a spec with an error" 3 "$tmp/bad.yaml:2:*" emit "$tmp/bad.yaml" -a sm_90 -o "$tmp/kept.cu"
is "an old file survives a failure" "$(cat "$tmp/kept.cu")" keep
t "a head dim too large" 4 "" emit causal -a sm_90 -D D=256 -s mma_d64
[ -w /dev/full ] && t "a full disk" 6 "" emit causal -a sm_90 -o /dev/full
is "read-only pipe end" "$("$bin" emit causal -a sm_90 2>/dev/null | head -c 2)" "//"

# ---- emit --debug-hang
t "debug-hang" 0 "" emit causal -a sm_90a --debug-hang
is "debug-hang" "$(sed -n 2p "$tmp/out"; grep -c 'mbar_wait(' "$tmp/out")" "// debug-hang build: waits are bounded; slower"$'\n'0
t "debug-hang without mbarriers" 0 "attngen: causal under mma_d64 has no mbarriers, so debug-hang has nothing to bound: it is the usual build" emit causal -a sm_90 -D D=64 --debug-hang
is "debug-hang without mbarriers" "$(cmp "$tmp/out" "$tmp/a.cu" 2>&1)" ""
t "debug-hang of an IR" 2 "attngen: --debug-hang goes with --as cu, ptx or cubin" emit causal -a sm_90a --as tile --debug-hang
t "debug-hang with a value" 2 "attngen: --debug-hang takes no value" bench causal --debug-hang=1
t "debug-hang on the simulator" 2 "attngen: --debug-hang is for the GPU, and --no-gpu rules it out" check causal --no-gpu --debug-hang
t "debug-hang on the CPU" 2 "attngen: --debug-hang is for the GPU, and --cpu rules it out" run dense --cpu --debug-hang
t "debug-hang of the reference" 2 "attngen: --debug-hang is for the GPU, and --reference rules it out" run dense --reference --debug-hang
t "debug-hang of show" 2 "attngen: show has no option \`--debug-hang\`; see \`attngen help show\`" show causal --timeline --debug-hang

# ---- show
t "show nothing" 2 "attngen: show needs --timeline, --mask or --picks" show causal -a sm_90
t "show nothing as a picture" 2 "attngen: show needs --timeline, --mask or --picks" show causal -a sm_90 --svg
t "show no spec" 2 "attngen: usage: attngen show SPEC [OPTION]...; see \`attngen help show\`" show --timeline
t "show an unknown option" 2 "attngen: show has no option \`--timelin\` (did you mean \`--timeline\`?); see \`attngen help show\`" show causal --timelin
t "timeline with a value" 2 "attngen: --timeline takes no value" show causal --timeline=svg
t "show a wrong spec" 3 "$tmp/bad.yaml:2:*" show "$tmp/bad.yaml" -a sm_90 --timeline
t "show what does not fit" 4 "" show causal -a sm_90 -D D=256 -s mma_d64 --timeline
t "timeline" 0 "" show causal -a sm_90a --timeline
is "timeline" "$(head -n 1 "$tmp/out")" "causal_fwd for sm_90a under wgmma_d128: 128 queries by 128 keys a step, D 128, Dv 128, bf16"
t "timeline to a file" 0 "" show causal -a sm_90a --timeline --svg -o "$tmp/a.svg"
is "timeline to a file" "$(head -c 4 "$tmp/a.svg")$(tail -n 1 "$tmp/a.svg")" "<svg</svg>"
t "timeline where a folder is missing" 6 "attngen: $tmp/no/a.svg: No such file or directory" show causal -a sm_90 --timeline -o "$tmp/no/a.svg"
is "completion of show" "$("$bin" help --completion bash >"$tmp/complete"; . "$tmp/complete"; COMP_WORDS=(attngen show causal --sv) COMP_CWORD=3; _attngen; echo "${COMPREPLY[*]}")" --svg

# ---- bind
t "bind help" 0 "" help bind
is "bind help names layouts" "$(grep -c 'one of: plain tail bshd pitch step broadcast reversed odd' "$tmp/out")" 1
t "bad layout" 2 "attngen: --layout is one of plain tail bshd pitch step broadcast reversed odd, not \`bshs\` (did you mean \`bshd\`?)" bind causal --layout bshs
t "no spec to bind" 2 "attngen: usage: attngen bind SPEC [OPTION]...; see \`attngen help bind\`" bind
t "a negative size" 2 "attngen: sizes must not be negative" bind causal -a sm_90 --sq -1
t "heads that do not divide" 2 "attngen: Hq is 4 and Hkv is 3: Hq must be a multiple of Hkv" bind causal -a sm_90 --heads 4 --kv-heads 3
t "a tensor out of reach" 2 "attngen: k would reach beyond 2^63 bytes" bind causal -a sm_90 -B 2000000000 --heads 1 --sq 1 --sk 500000000
for layout in plain tail bshd pitch step broadcast reversed odd; do t "bind $layout" 0 "" bind causal -a sm_90a -D D=64 --layout $layout; done
is "an odd base" "$(grep -c '^  [qkv]: data is 2 bytes past a multiple of 16, TMA takes 0' "$tmp/out")" 3
is "the portable kernel has it" "$(grep -A 1 'so the portable kernel runs:' "$tmp/out" | tail -n 1)" \
    "causal under mma_d64 for sm_90, bf16, D 64, Dv 64: B 4, Hq 32, Hkv 32, Sq 4096, Sk 4096, odd"
t "bind by TMA" 0 "" bind causal -a sm_90a -D D=64 -B 1 --heads 4 --kv-heads 2 --sq 100 --sk 300
is "all by TMA" "$(grep -c '^  [qkv]: TMA$' "$tmp/out")" 3
is "the sizes" "$(head -n 1 "$tmp/out" | grep -o 'B 1, Hq 4.*')" "B 1, Hq 4, Hkv 2, Sq 100, Sk 300, plain"
t "bind without TMA" 0 "" bind dense -a sm_86 -D D=31 --sk 64
is "element-wise" "$(sed -n 3p "$tmp/out")" "  q: element-wise loads, extent of d is 31, no multiple of 8"
t "bind in pieces" 0 "" bind dense -a sm_86 -D D=64 -B 2 --heads 3 --sk 64
is "in pieces" "$(sed -n '2,4p' "$tmp/out" | tr '\n' '|')" "6 blocks; 128 threads and 49152 bytes of shared memory a block; 0 bytes of workspace|  q: 16-byte pieces|  k: 16-byte pieces|"

# ---- lists, man page, completion, cache
t "list specs" 0 "" list specs
is "list specs" "$(cat "$tmp/out")" "$(cd specs && printf '%s\n' *.yaml | sed 's/\.yaml$//')"
t "list schedules" 0 "" list schedules
is "list schedules" "$(sort "$tmp/out")" "$(cd schedules && printf '%s\n' *.yaml | sed 's/\.yaml$//' | sort)"
t "list archs" 0 "" list archs
t "man" 0 "" help --man
is "man" "$(head -n 1 "$tmp/out")" '.TH ATTNGEN 1 "" "attngen 0.1.0" "User Commands"'
t "completion" 0 "" help --completion bash
is "completion parses" "$(bash -n "$tmp/out" 2>&1)" ""
# shellcheck disable=SC1090,SC2154
is "completion works" "$(. "$tmp/out"; COMP_WORDS=(attngen emit causal --as t) COMP_CWORD=4; _attngen; echo "${COMPREPLY[*]}")" tile
t "cache path" 0 "" cache path
is "cache path" "$(cat "$tmp/out")" "$tmp/cache"
t "cache list" 0 "" cache list
t "cache clear" 0 "" cache clear
t "doctor" 0 "" doctor

# ---- run: real tensors, one layer of all-MiniLM-L6-v2 (12 heads, D 32), against that model's own attention output.
# The inputs were rounded to f16 and the kernel rounds P and O to f16; both together stay below 2e-3 where |o| is at most 1.6.
d=tests/data/minilm
in=(--in q=${d}_q.npy --in k=${d}_k.npy --in v=${d}_v.npy)
real() { # NAME OPTION...
    local name=$1
    shift
    t "$name" 0 "" run dense -a sm_90 "${in[@]}" --out o="$tmp/o.npy" --out lse="$tmp/lse.npy" "$@"
    if "$diff" "$tmp/o.npy" ${d}_o.npy 2e-3 >"$tmp/diff" 2>&1; then ok; else no "$name: $(cat "$tmp/diff")"; fi
}
real "a real layer, simulated" --cpu -D D=32 -D dtype=f16
real "a real layer, reference" --reference --out-dtype f32
cp "$tmp/lse.npy" "$tmp/lse_reference.npy"
real "a real layer, simulated, small arch" --cpu -a sm_86
if "$diff" "$tmp/lse.npy" "$tmp/lse_reference.npy" 1e-3 >"$tmp/diff" 2>&1; then ok; else no "lse: $(cat "$tmp/diff")"; fi
is "o has the type of q" "$(head -c 30 "$tmp/o.npy" | tr -dc '<a-z0-9' | grep -o '<f2')" "<f2"
if "$bin" check dense --gpu --case '' -D D=32 >/dev/null 2>&1; then
    real "a real layer, on the GPU"
else
    skipped=$((skipped + 1)) && echo "skipped: a real layer on the GPU: there is none"
fi
t "scale changes the result" 0 "" run dense -a sm_90 "${in[@]}" --cpu --set scale=1 --out o="$tmp/o.npy"
if "$diff" "$tmp/o.npy" ${d}_o.npy 2e-3 >/dev/null 2>&1; then no "scale changes the result"; else ok; fi
t "bf16 from f16 files" 0 "" run causal -a sm_90 "${in[@]}" --cpu --dtype bf16 --out o="$tmp/o.npy"
t "bf16 bits" 0 "" run causal -a sm_90 "${in[@]}" --cpu --dtype bf16 --out-dtype bf16 --out o="$tmp/bits.npy"
t "bf16 bits as input" 0 "" run causal -a sm_90 --in q="$tmp/bits.npy" --in k="$tmp/bits.npy" --in v="$tmp/bits.npy" --cpu --dtype bf16 --out o="$tmp/o.npy"
is "bits stay bits" "$(head -c 30 "$tmp/o.npy" | grep -a -o '<u2')" "<u2"
t "bits need a type" 2 "attngen: $tmp/bits.npy: type '<u2' is read as bf16 bits only with --dtype bf16" run causal -a sm_90 --in q="$tmp/bits.npy" --in k=${d}_k.npy --in v=${d}_v.npy --cpu --out o="$tmp/o.npy"
t "an input is missing" 2 "attngen: --in v=FILE is missing" run dense -a sm_90 "${in[@]:0:4}" --cpu --out o="$tmp/o.npy"
t "no output" 2 "attngen: --out o=FILE is missing" run dense -a sm_90 "${in[@]}" --cpu
t "an unknown input" 2 "attngen: --in is one of q k v, not \`x\`" run dense -a sm_90 --in x=y --cpu
t "an input twice" 2 "attngen: --in q is given twice" run dense -a sm_90 --in q=${d}_q.npy --in q=${d}_q.npy --cpu
t "another D" 2 "attngen: -D D=64, but q and k have D 32" run dense -a sm_90 "${in[@]}" --cpu -D D=64 --out o="$tmp/o.npy"
t "not a .npy" 2 "attngen: specs/dense.yaml: not a .npy file" run dense -a sm_90 --in q=specs/dense.yaml --cpu
head -c 1000 ${d}_q.npy >"$tmp/short.npy"
t "a truncated .npy" 2 "attngen: $tmp/short.npy: the shape needs 75264 bytes of data, the file has 872" run dense -a sm_90 --in q="$tmp/short.npy" --cpu
t "no such .npy" 6 "attngen: $tmp/none.npy: No such file or directory" run dense -a sm_90 --in q="$tmp/none.npy" --cpu
t "cpu and reference" 2 "attngen: --cpu and --reference exclude each other" run dense --cpu --reference

# ---- captured tensors in a mask: with one document it is causal
npy_i32() { # FILE SHAPE COUNT: zeros
    { printf '\223NUMPY\001\000\166\000'; printf '%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': $2, }"; head -c $(($3 * 4)) /dev/zero; } >"$1"
}
npy_i32 "$tmp/doc.npy" "(1, 98)" 98
npy_i32 "$tmp/short.npy" "(1, 97)" 97
t "run a spec with a captured tensor" 0 "" run document -a sm_90a "${in[@]}" --in doc="$tmp/doc.npy" --cpu --out o="$tmp/o.npy"
t "run it without" 0 "" run causal -a sm_90a "${in[@]}" --cpu --out o="$tmp/ref.npy"
if "$diff" "$tmp/o.npy" "$tmp/ref.npy" 1e-3 >"$tmp/diff" 2>&1; then ok; else no "one document is causal: $(cat "$tmp/diff")"; fi
t "a captured tensor that is too short" 2 "attngen: $tmp/short.npy: doc is [1, 97], expected [1, 98]: dim 2 is k, and Sk is 98" run document -a sm_90a "${in[@]}" --in doc="$tmp/short.npy" --cpu --out o="$tmp/o.npy"
t "bind a spec with a captured tensor" 0 "" bind document -a sm_90a -D D=64 -B 2 --heads 4 --sk 128
is "bind, how doc is read" "$(grep doc: "$tmp/out")" "  doc: element by element"

# ---- programs: a captured tensor, a pool, a selection, one branch, an output
cat >"$tmp/prog.yaml" <<'EOF'
attention: prog
inputs: {add: {f16: [b, h, q, d]}}
derive:
  mean: {pool: k, size: 16, stride: 16, op: mean, tail: partial}
  picks: {select: mean, block: 16, count: 3, force: {local: 1}, share: head}
branches:
  top: {blocks: picks, mask: k <= q}
output: top + add[b, h, q, d]
EOF
p=$tmp/prog.yaml
t "check a program" 0 "" check "$p" -a sm_90 --no-gpu -D D=32 -D dtype=f16
is "check a program, all of it" "$(tail -n 1 "$tmp/out" | grep -c '30 passed, 0 failed')" 1
t "run a program" 0 "" run "$p" -a sm_90 "${in[@]}" --in add=${d}_v.npy --cpu --out o="$tmp/o.npy"
t "run a program by the reference" 0 "" run "$p" -a sm_90 "${in[@]}" --in add=${d}_v.npy --reference --out o="$tmp/ref.npy"
if "$diff" "$tmp/o.npy" "$tmp/ref.npy" 4e-3 >"$tmp/diff" 2>&1; then ok; else no "run a program: $(cat "$tmp/diff")"; fi
t "a captured tensor is missing" 2 "attngen: --in add=FILE is missing" run "$p" -a sm_90 "${in[@]}" --cpu --out o="$tmp/o.npy"
t "a captured tensor with another name" 2 "attngen: --in is one of q k v add, not \`ad\` (did you mean \`add\`?)" run "$p" -a sm_90 "${in[@]}" --in ad=x --cpu
t "a captured tensor twice" 2 "attngen: --in add is given twice" run "$p" -a sm_90 "${in[@]}" --in add=${d}_v.npy --in add=${d}_v.npy --cpu
{ printf '\223NUMPY\001\000\166\000'; printf '%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }"; printf '12345678'; } >"$tmp/ints.npy"
t "a captured tensor of another type" 2 "attngen: $tmp/ints.npy: add is f16, but the file has '<i4'" run "$p" -a sm_90 "${in[@]}" --in add="$tmp/ints.npy" --cpu --out o="$tmp/o.npy"
t "ints for q" 2 "attngen: $tmp/ints.npy: q has 1 dimensions, expected [B, H, S, D] or [H, S, D]" run "$p" -a sm_90 --in q="$tmp/ints.npy" --cpu
sed 's/b, h, q, d/h, q, d/' "$p" >"$tmp/prog3.yaml"
t "a captured tensor of another shape" 2 "attngen: ${d}_v.npy: add is [1, 12, 98, 32], expected [12, 98, 32]" run "$tmp/prog3.yaml" -a sm_90 "${in[@]}" --in add=${d}_v.npy --cpu --out o="$tmp/o.npy"
t "a program without lse" 2 "attngen: prog has no lse" run "$p" -a sm_90 "${in[@]}" --in add=${d}_v.npy --cpu --out o="$tmp/o.npy" --out lse="$tmp/lse.npy"
rows="$tmp/rows.yaml"
printf 'attention: rows\nrows: [lse, max]\nmask: k <= q\n' >"$rows"
t "the largest score of each row" 0 "" run "$rows" -a sm_90 "${in[@]}" --cpu --out max="$tmp/max.npy"
t "the same by the reference" 0 "" run "$rows" -a sm_90 "${in[@]}" --reference --out max="$tmp/ref.npy" --out lse="$tmp/lse.npy"
if "$diff" "$tmp/max.npy" "$tmp/ref.npy" 1e-3 >"$tmp/diff" 2>&1; then ok; else no "max: $(cat "$tmp/diff")"; fi
if "$diff" "$tmp/max.npy" "$tmp/lse.npy" 1e-3 >/dev/null 2>&1; then no "max is the lse"; else ok; fi
t "a spec without max" 2 "attngen: dense has no max" run dense -a sm_90 "${in[@]}" --cpu --out max="$tmp/max.npy"
t "no such output" 2 'attngen: --out is one of o lse max mean_weight, not `maximum`' run dense -a sm_90 "${in[@]}" --cpu --out maximum="$tmp/max.npy"
t "bind a program" 0 "" bind "$p" -a sm_90 -D D=32 -B 1 --heads 4 --sk 64
is "bind a program, its kernels for few queries" "$(grep -cE '^  prog_(pool0|picks|top_fwd): [0-9]+ blocks' "$tmp/out")" 3
is "few queries are not merged" "$(grep -c merge0 "$tmp/out")" 0
is "bind a program, its buffers" "$(grep -E 'picks \[' "$tmp/out")" "  picks [1, 4, 64, 3]: 3072 bytes at 1280"
t "bind a program to many queries" 0 "" bind "$p" -a sm_90 -D D=32 -B 1 --heads 4 --sk 1024
is "bind a program, its kernels for many queries" "$(grep -cE '^  prog_(pool0|picks|top_fwd|merge0): [0-9]+ blocks' "$tmp/out")" 4
t "bind a program compiled for few queries" 0 "" bind "$p" -a sm_90 -D D=32 -D queries=7 -B 1 --heads 4 --sk 1024
is "few queries, as it was compiled" "$(grep -c merge0 "$tmp/out")" 0
t "the IRs of a program" 0 "" emit "$p" -a sm_90 -D D=32 --as tile
is "the IRs of a program, by kernel" "$(grep -cE '^==== prog_(pool0|picks|top_fwd|merge0)$' "$tmp/out")" 4
t "the Math IR of a program" 0 "" emit "$p" -a sm_90 -D D=32 --as math --after hoist
is "the Math IR of a program, by kernel" "$(head -n 2 "$tmp/out" | tail -n 1)" "program prog_top   D 32  Dv 32  bf16"

# ---- speculative softmax
t "a mask without plain steps" 0 "" emit dilated -a sm_90a
is "no reference where no step is speculative" "$(grep -c 'ref\[' "$tmp/out")" 0
t "a mask with plain steps" 0 "" emit causal -a sm_90a
is "a reference for speculative steps" "$(grep -c 'float ref\[' "$tmp/out")" 1

# ---- show --picks
t "picks" 0 "" show "$p" --picks -a sm_90 -D D=32 --sk 112 --sq 3
is "picks, the last row" "$(tail -n 1 "$tmp/out")" "$(tail -n 1 "$tmp/out" | grep -E '^     111  [.#]{6}L$')"
is "picks, three of them" "$(tail -n 1 "$tmp/out" | tr -dc '#L' | wc -c)" 3
is "picks, the first row" "$(sed -n 5p "$tmp/out")" "     109  $(sed -n 5p "$tmp/out" | cut -c 11-16)L"
t "picks of tensors" 0 "" show "$p" --picks -a sm_90 --in q=${d}_q.npy --in k=${d}_k.npy
is "picks of tensors, rows" "$(grep -cE '^ +[0-9]+  [.#]*L$' "$tmp/out")" 32
t "picks of half the tensors" 2 "attngen: --in q=FILE and --in k=FILE go together" show "$p" --picks -a sm_90 --in q=${d}_q.npy
t "picks of an unknown tensor" 2 "attngen: --in is one of q k, not \`kk\` (did you mean \`k\`?)" show "$p" --picks -a sm_90 --in kk=x
t "picks of a spec without any" 2 "attngen: causal selects no blocks: --picks is for specs with a \`select\`" show causal --picks -a sm_90
t "picks as a picture" 2 "attngen: --picks is drawn as text: --svg is for --timeline" show "$p" --picks --svg -a sm_90
t "picks and timeline" 2 "attngen: --timeline, --mask and --picks exclude each other" show "$p" --picks --timeline -a sm_90
t "picks of nothing" 2 "attngen: sizes must not be negative" show "$p" --picks -a sm_90 --sk -1
t "picks of a wrong spec" 3 "$tmp/bad.yaml:2:*" show "$tmp/bad.yaml" -a sm_90 --picks

# ---- show --mask
t "mask" 0 "" show causal --mask -a sm_90 --sq 2 --sk 4
is "mask, its rows" "$(tail -n 2 "$tmp/out" | tr '\n' ' ')" "###. #### "
t "mask in cells" 0 "" show causal --mask -a sm_90 --sk 128
is "mask in cells, its first row" "$(sed -n 4p "$tmp/out")" "+$(printf '.%.0s' {1..63})"
is "mask in cells, its last row" "$(sed -n 67p "$tmp/out")" "$(printf '#%.0s' {1..63})+"
t "mask, its tiles" 0 "" show causal --mask -a sm_90 --sk 256
is "mask, its tiles" "$(tail -n 1 "$tmp/out")" "8 tiles of 128 queries x 64 keys under mma_d128 for sm_90: 6 hold a visible key, 6 are visited, 2 of them without a mask; by bounds"
t "mask, its tiles by a map" 0 "" show document --mask -a sm_90 --sk 256
is "mask, its tiles by a map" "$(tail -n 1 "$tmp/out")" "8 tiles of 128 queries x 64 keys under mma_d128 for sm_90: 4 hold a visible key, 4 are visited, 0 of them without a mask; by a map, bounds would visit 6"
t "mask with a parameter and an offset" 0 "" show sliding_window --mask -a sm_90 -D window=2 --sq 1 --sk 4 --offset 1
is "mask with a parameter and an offset, its row" "$(tail -n 1 "$tmp/out")" "##.."
printf '\x93NUMPY\x01\x00\x76\x00%-117s\n\x00\x01\x00\x01' "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 4), }" >"$tmp/keep.npy"
t "mask with a tensor" 0 "" show evoformer_row --mask -a sm_90 --sk 4 --in keep="$tmp/keep.npy"
is "mask with a tensor, its row" "$(tail -n 1 "$tmp/out")" ".#.#"
t "mask of branches" 0 "" show nsa --mask -a sm_90 --sk 64
is "mask of branches, one each" "$(grep -c 'nsa, branch ' "$tmp/out")" 3
t "mask with a tensor of other dims" 2 "attngen: $tmp/keep.npy: the dims of keep are [1, 5]" show evoformer_row --mask -a sm_90 --sk 5 --in keep="$tmp/keep.npy"
t "mask with a tensor of another type" 2 "attngen: $tmp/keep.npy: '|b1' is no type for pair" show evoformer_row --mask -a sm_90 --sk 4 --in pair="$tmp/keep.npy"
t "mask with an unknown tensor" 2 "attngen: --in is one of the captured tensors of the spec, keep pair, not \`kep\` (did you mean \`keep\`?)" show evoformer_row --mask -a sm_90 --in kep=x
t "mask with a tensor, of a spec without" 2 "attngen: --in is one of the captured tensors of the spec, of which it has none, not \`doc\`" show causal --mask -a sm_90 --in doc=x
t "mask with a tensor that is not there" 6 "attngen: $tmp/no.npy: No such file or directory" show evoformer_row --mask -a sm_90 --in keep="$tmp/no.npy"
t "mask as a picture" 2 "attngen: --mask is drawn as text: --svg is for --timeline" show causal --mask --svg -a sm_90
t "mask and picks" 2 "attngen: --timeline, --mask and --picks exclude each other" show causal --mask --picks -a sm_90
t "mask of nothing" 2 "attngen: sizes must be positive" show causal --mask -a sm_90 --sk -1
t "mask of a wrong spec" 3 "$tmp/bad.yaml:2:*" show "$tmp/bad.yaml" -a sm_90 --mask

# ---- bench without a GPU
if ! "$bin" check dense --gpu --case '' -D D=32 >/dev/null 2>&1; then t "bench without a GPU" 6 "" bench causal -D D=64; fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
