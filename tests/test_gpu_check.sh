#!/usr/bin/env bash
# Tests the logic of tests/gpu_check.sh without a GPU or a build: cmake, ninja, ctest, nvcc,
# compute-sanitizer and nvidia-smi are stubs.
#   tests/test_gpu_check.sh
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
unset "${!HEDDLE_@}" CPATH LIBRARY_PATH CMAKE_PREFIX_PATH
failures=0

fail() { printf 'FAIL: %s\n' "$*"; failures=$((failures + 1)); }
script() { cat >"$1" && chmod +x "$1"; }
has() { grep -q -e "$1" "$tree/gpu-report.md" || fail "'$1' is not in the report ($2): $(head -c 3000 "$tree/gpu-report.md")"; }
lacks() { ! grep -q -e "$1" "$tree/gpu-report.md" || fail "'$1' is in the report ($2)"; }
check() {  # CODE ARGUMENT…
  local code=$1 out; shift
  (cd "$tree" && PATH=$work/bin:$PATH tests/gpu_check.sh "$@") >"$work/out" 2>&1; out=$?
  [ $out = "$code" ] || fail "exit code $out instead of $code: $* ($(tail -5 "$work/out"))"
}

tree=$work/tree
mkdir -p "$tree/tests" "$tree/.carry" "$work/bin" "$work/cuda/bin" "$work/cuda/include" "$work/packed/include"
cp "$here/gpu_check.sh" "$tree/tests"
# Ninja "builds" copies of one stub program, which writes the losses of two steps, or a line for `compare`.
script "$work/bin/cmake" <<'STUB'
#!/bin/sh
echo "cmake $*"
STUB
script "$work/bin/ninja" <<'STUB'
#!/bin/sh
[ -e "${NINJA_FAILS:-/nonexistent}" ] && { echo 'a file does not compile'; exit 1; }
for name in train_resnet train_lm bench test_core test_gpu; do
  cp "$0.program" build-cuda/$name
done
STUB
script "$work/bin/ninja.program" <<'STUB'
#!/bin/sh
folder=''
while [ $# -gt 0 ]; do
  case $1 in --output-dir) folder=$2 ;; --device) device=$2 ;; *compare*) echo 'compare gemm (3, 5) f32 1e-7 1e-5' ;; esac
  shift
done
[ -n "$folder" ] || { echo 'stub 1.0'; exit 0; }
mkdir -p "$folder"
loss=1.5
[ "$device" = cuda ] && [ -e "$(dirname "$0")/../apart" ] && loss=1.9
for step in 1 2; do echo "{\"step\":$step,\"split\":\"train\",\"loss\":$loss,\"lr\":1}"; done >"$folder/metrics.jsonl"
STUB
script "$work/bin/ctest" <<'STUB'
#!/bin/sh
echo "  1/1 Test  #1: test_core on ${HEDDLE_TEST_DEVICE:-nothing} ......   Passed    0.01 sec"
STUB
script "$work/bin/compute-sanitizer" <<'STUB'
#!/bin/sh
sleep "${SANITIZER_SLEEPS:-0}"
STUB
script "$work/cuda/bin/nvcc" <<'STUB'
#!/bin/sh
echo 'release 13.0, V13.0.0'
STUB
ln -s "$work/cuda/bin/nvcc" "$work/bin/nvcc"
script "$work/nvidia-smi" <<'STUB'
#!/bin/sh
case $* in -L) echo 'GPU 0: Stub' ;; *compute_cap*noheader*) echo 9.0 ;; *) echo 'name, Stub GPU' ;; esac
STUB
# A Python path with cuDNN, laid out as pip installs its wheel.
mkdir -p "$work/site/nvidia/cudnn/include" "$work/site/nvidia/cudnn/lib"
: >"$work/site/nvidia/cudnn/include/cudnn.h"
: >"$work/site/nvidia/cudnn/lib/libcudnn.so.9"
export PYTHONPATH=$work/site
: >"$work/packed/include/carried.h"
tar -C "$work/packed" -czf "$tree/.carry/deps.tar.gz" include

check 2 --part bench,paint
grep -q 'paint' "$work/out" || fail "an unknown part: $(cat "$work/out")"
check 2 --limit soon
check 2 --part
script "$work/bin/nvidia-smi" <<<$'#!/bin/sh\nexit 9'  # as without a driver

check 2  # without a GPU: builds, runs to its end, and says so
has '| compile and link | passed' 'no GPU'
has 'not run: no GPU' 'no GPU'
[ "$(grep -c '^not run: no GPU$' "$tree/gpu-report.md")" = 4 ] || fail 'not every part says that there is no GPU'
[ -e "$tree/build-cuda/vendor/include/cudnn.h" ] || fail "cuDNN's header was not found"
[ -e "$tree/build-cuda/vendor/lib/libcudnn.so" ] || fail "cuDNN's library has no plain name"
[ -e "$tree/build-cuda/deps/include/carried.h" ] || fail 'what was carried is not unpacked'

cp "$work/nvidia-smi" "$work/bin/nvidia-smi"
check 0 --part test  # with a GPU: its section replaces the old one, the others stay
has 'test_core on cuda' 'tests on the GPU'
has '| compile and link | passed' 'the section of an earlier run'
[ "$(grep -c '^not run: no GPU$' "$tree/gpu-report.md")" = 3 ] || fail 'the other sections have changed'
rm -rf "$tree/build-cuda/report"
check 0 --part sanitize
has 'test_core on cuda' 'the report of another machine'
check 0
has 'at most 0 apart' 'runs on both devices'
has 'compare gemm (3, 5)' 'every operation'
has 'Stub GPU' 'the name of the card'
lacks 'failed' 'all good'
: >"$tree/apart"
check 1 --part compare  # 1.5 and 1.9 differ too much; the other comparisons continue
has 'ResNet-20: both devices agree | \*\*failed' 'losses that differ'
has '| LSTM, cuda | passed' 'after a failure'
SANITIZER_SLEEPS=5 check 1 --part sanitize --limit 1
has 'no time was left' 'a part that is too long'
touch "$work/broken"
NINJA_FAILS=$work/broken check 1 --quick --part build,test
has 'a file does not compile' 'the end of what failed'
has 'test_core on cuda' 'the part after a failure'
[ $failures = 0 ] && echo 'gpu_check: all good'
exit $((failures > 0))
