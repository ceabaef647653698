#!/usr/bin/env bash
# Tests tests/gpu_pack.sh and tests/gpu_check.sh without a GPU or a build: programs, nvidia-smi, compute-sanitizer, ncu,
# PyTorch, cmake and ninja are stubs.
#   tests/test_gpu_check.sh
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
unset "${!HEDDLE_@}" LD_LIBRARY_PATH PYTHONPATH
export TMPDIR=$work/tmp
tree=$work/tree report=$work/out/gpu-report.md
parts=(machine compare speed torch train tests sanitize profile autotune nccl)
programs=(train_resnet train_lm bench test_gpu test_core test_layers test_compress test_optim test_golden)
failures=0

fail() { printf 'FAIL: %s\n' "$*"; failures=$((failures + 1)); }
script() { cat >"$1" && chmod +x "$1"; }
has() { grep -q -e "$1" "$report" || fail "'$1' is not in the report ($2): $(head -c 1000 "$report")"; }
lacks() { ! grep -q -e "$1" "$report" || fail "'$1' is in the report ($2)"; }
says() { grep -q -e "$1" "$work/said" || fail "'$1' was not said: $(tail -n 5 "$work/said")"; }
expect() {  # CODE COMMAND…, with stubs before this machine's tools
  local code=$1 found=0; shift
  (cd "$work" && PATH=$work/bin:$PATH "$@") >"$work/said" 2>&1 || found=$?
  [ $found = "$code" ] || fail "exit code $found instead of $code: $* ($(tail -n 5 "$work/said"))"
}
check() { local code=$1; shift; expect "$code" "$runner" "$@" --out "$work/out"; }
order() {  # the report's headings, whatever the order in which they were asked for
  [ "$(sed -n 's/^## \([a-z]*\), 2.*/\1/p' "$report" | paste -sd' ')" = "$*" ] ||
    fail "sections: $(grep '^## ' "$report" | paste -sd' ') instead of $*"
}

mkdir -p "$tree"/{tests/golden,apps/benchmarks} "$work"/{bin,tmp,build,data/tinyshakespeare}
cp "$here"/gpu_{check,pack}.sh "$tree/tests"
echo golden >"$tree/tests/golden/a.safetensors"
echo 'print("{\"torch\": \"9.9\", \"ms\": [3, 1, 2]}")' >"$tree/apps/benchmarks/torch_step.py"
head -c 1500000 /dev/urandom >"$work/data/tinyshakespeare/input.txt"

# ------------------------------------------------------------------------------------------- packing
pack() { local code=$1; shift; HEDDLE_DATA=$work/data expect "$code" "$tree/tests/gpu_pack.sh" "$@"; }
pack 2 --paint
pack 2 --limit much
pack 2 --build
pack 2 one two
pack 2 --build "$work/nothing"
says 'not a build folder'
# Real programs: they are stripped, and their libraries are searched for.
for name in "${programs[@]}"; do cp "$(type -P true)" "$work/build/$name"; done
cp "$(type -P sed)" "$work/build/bench"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$work/built/heddle" >"$work/build/CMakeCache.txt"
pack 1 --build "$work/build" --limit 1 "$work/large"
says 'larger than 1 MiB'
pack 0 --build "$work/build"
says '\.carry/run: [1-9].* MiB$'
[ "$tree/.carry/run/gpu_check.sh" -ef "$tree/tests/gpu_check.sh" ] && fail 'the runner is not a copy'
mkdir "$work/unpacked" && tar -C "$work/unpacked" -xzf "$tree/.carry/run/heddle.tar.gz"
for name in bin/bench bin/torch_step.py data/tinyshakespeare/input.txt source/tests/golden/a.safetensors; do
  [ -e "$work/unpacked/$name" ] || fail "$name is not packed"
done
compgen -G "$work/unpacked/*/libc.so*" >/dev/null && fail 'libc is packed'
cp "$tree/.carry/run/heddle.tar.gz" "$work/first" && sleep 1
pack 0 --build "$work/build"
cmp -s "$work/first" "$tree/.carry/run/heddle.tar.gz" || fail 'equal programs give different packs'
rm "$work/build/bench"
pack 1 --build "$work/build"
says 'bench is not built'

# ---------------------------------------------------------------- a pack alone, on a machine without a GPU
carried=$work/carried runner=$work/carried/gpu_check.sh
mkdir "$carried" && cp "$tree/tests/gpu_check.sh" "$carried"
script "$work/bin/nvidia-smi" <<<$'#!/bin/sh\nexit 9'  # as without a driver
check 2
says 'no CUDA device'
# Programs as scripts: one for all, which does what its name and $STUB_… say.
script "$work/unpacked/bin/stub" <<'STUB'
#!/bin/sh
echo "$(basename "$0") on ${HEDDLE_TEST_DEVICE:-nothing}: $*"
case $(basename "$0") in
  test_gpu) echo 'compare gemm (3, 5) f32 1e-7 1e-5' ;;
  test_golden) cat "$STUB_SOURCE/tests/golden/a.safetensors" || exit 1 ;;
esac
case $* in *'--learners 2'*) echo 'ranks 1 and 0 have the same GPU'; exit 2 ;; esac
echo '[doctest] test cases: 28 passed'
[ "$(basename "$0")" != "${STUB_FAILS:-}" ] || exit 1
STUB
for name in "${programs[@]}"; do ln -f "$work/unpacked/bin/stub" "$work/unpacked/bin/$name"; done
export STUB_SOURCE=$work/built/heddle
repack() { echo "$1" >"$work/unpacked/note" && tar -C "$work/unpacked" -czf "$carried/heddle.tar.gz" .; }
repack first
check 2 --paint
says "unknown argument '--paint'"
check 2 --part machine,paint
says 'paint'
check 2 --part ''
check 2 "$work/nothing"
says 'no heddle.tar.gz'
expect 2 "$runner" --out
expect 0 "$runner" --help
says 'Exit codes'
check 2
order "${parts[@]:0:9}"
[ "$(grep -c '^no CUDA device$' "$report")" = 9 ] || fail 'not every part says that there is no CUDA device'
has 'train_resnet on nothing: --version' 'the machine, without a GPU'
check 2 --part nccl
[ "$(grep -c '^no CUDA device$' "$report")" = 10 ] || fail 'nccl does not say that there is no CUDA device'
lacks '| test_gpu |' 'nothing ran'
order "${parts[@]}"

# --------------------------------------------------------------------------------------- with a GPU
script "$work/bin/nvidia-smi" <<'STUB'
#!/bin/sh
case $* in *compute_cap*) echo 8.9 ;; *) echo 'GPU 0: Stub' ;; esac
STUB
for name in compute-sanitizer ncu; do script "$work/bin/$name" <<'STUB'
#!/bin/sh
[ -z "${STUB_REFUSES:-}" ] || { echo "==== $STUB_REFUSES"; exit 1; }
case $* in *initcheck*) exit "${STUB_FINDS:-0}" ;; esac
STUB
done
mkdir "$work/site" && echo '__version__ = "9.9"' >"$work/site/torch.py"
repack second  # what an earlier pack left is removed
check 0 --part speed,machine
order machine speed
has 'GPU 0: Stub' 'the name of the card'
grep -n '^| [a-z]' "$report" | tail -n 3 | cut -d' ' -f2 | paste -sd' ' | grep -qx 'resnet50 lstm resnet20' || fail 'ResNet-50 is not first'
PYTHONPATH=$work/site check 0 --part compare,torch,train,tests,sanitize,profile,autotune
order "${parts[@]:0:9}"
lacks 'failed' 'all good'
lacks 'not run' 'everything is here'
has '| test_core | passed' 'a test'
has 'test_gpu\|compared: 1 operations' 'operations'
has 'torch_resnet50_default 9.9 median 2.000 ms' "PyTorch's time"
grep -q '^compare gemm' "$work/out/compare.txt" || fail 'no compare.txt'
tar -xzOf "$work/out/logs.tar.gz" ./test_core.log | grep -q 'test_core on cuda' || fail 'tests do not run on the GPU'
[ ! -e "$work/built/heddle" ] || fail 'the link to the sources stays'
STUB_FAILS=test_layers check 1 --part tests
has '| test_layers | \*\*failed\*\* (exit code 1)' 'a failed test, side by side'
has '| test_golden | passed' 'after a failure'
has '| resnet50 | passed' 'sections of earlier calls'
STUB_FINDS=9 check 1 --part sanitize
has '| initcheck | \*\*failed' 'what a sanitizer finds'
STUB_REFUSES='Error: Device not supported' check 0 --part sanitize
has '| synccheck | not run: Device not supported' 'a tool that refuses the card'
STUB_REFUSES=ERR_NVGPUCTRPERM check 0 --part profile
has '| ncu | not run: ERR_NVGPUCTRPERM' 'no rights to count'
check 0 --part nccl
has 'not run: two ranks need two GPUs, or NCCL 2.30' 'two ranks on one card'
if ! python3 -c 'import torch' 2>/dev/null; then
  check 0 --part torch
  has 'not run: no PyTorch' 'without PyTorch'
fi

# ------------------------------------------------------------- a tree without a pack builds one for the card
runner=$tree/tests/gpu_check.sh
rm -r "$tree/.carry"
script "$work/bin/cmake" <<<$'#!/bin/sh\necho "$*" >"$(dirname "$0")/../configured"'
script "$work/bin/nvcc" <<<$'#!/bin/sh\nexit 0'
script "$work/bin/ninja" <<<$'#!/bin/sh\necho a file does not compile; exit 1'
check 1 --part machine
has '| build | \*\*failed' 'a build that fails'
has 'a file does not compile' 'the end of what failed'
cp "$(type -P true)" "$work/build/bench"
ln -s "$work/build" "$tree/build-carry"
script "$work/bin/ninja" <<<$'#!/bin/sh\nexit 0'
check 0 --part machine
order build machine
grep -q 'HEDDLE_NATIVE=OFF.*CMAKE_CUDA_ARCHITECTURES=89 ' "$work/configured" || fail "configured with $(cat "$work/configured")"
[ $failures = 0 ] && echo 'gpu_check: all good'
exit $((failures > 0))
