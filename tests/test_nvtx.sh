#!/usr/bin/env bash
# In a CUDA build the ranges of a trace are NVTX ranges with the same names, in the traced steps only.
# No GPU is needed: a library that replaces the profiler records them.
#   tests/test_nvtx.sh build/train_resnet build/libnvtx_listener.so
set -u
resnet=$(realpath "$1") && listener=$(realpath "$2") || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
unset "${!HEDDLE_@}"  # they are flags to the programs
export OMP_WAIT_POLICY=passive NVTX_INJECTION64_PATH=$listener NVTX_LISTENER_LOG=$work/seen
failures=0
fail() { printf 'FAIL: %s\n' "$*"; failures=$((failures + 1)); }

run=(--device cpu --image-size 16 --batch-size 4 --learners 2 --threads 1 --steps 4 --quiet)
"$resnet" "${run[@]}" --output-dir silent >/dev/null || fail 'a run without trace'
[ ! -s seen ] || fail "ranges without a trace: $(head -3 seen)"
"$resnet" "${run[@]}" --trace t.json --trace-steps 2:3 --output-dir traced >/dev/null || fail 'a traced run'
for name in 'forward: conv1.weight' 'backward: conv1.weight' 'update: fc.weight' 'comm: bucket 0'; do
  [ "$(grep -cx "push $name" seen)" = 4 ] || fail "two steps of two ranks: $name, $(grep -cx "push $name" seen) times"
done
[ "$(grep -c ^push seen)" = "$(grep -c '"ph":"X"' t.json)" ] || fail "ranges: $(grep -c ^push seen), in the trace $(grep -c '"ph":"X"' t.json)"
[ "$(grep -c ^push seen)" = "$(grep -c ^pop seen)" ] || fail 'a range without an end'
[ $failures = 0 ] && echo 'nvtx: all well'
exit $((failures > 0))
