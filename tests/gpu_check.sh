#!/usr/bin/env bash
# Implements ./run gpu-check: tests, compares and times heddle on this machine's GPU, with the programs that
# ./run gpu-pack has packed, else with programs built here. Needs bash, python3, the libraries of CUDA, cuDNN and NCCL
# (in CUDA's folder or in Python's site-packages), for the parts torch and autotune PyTorch, and no network.
#   gpu_check.sh [--quick] [--part LIST] [--out FOLDER] [PACK]
#     PACK           folder with heddle.tar.gz (default: that of this script, else .carry/run of the tree)
#     --out FOLDER   gets gpu-report.md, logs.tar.gz and compare.txt, renewed after each command (default: gpu-report)
#     --part LIST    run these parts, separated by commas; a part that runs again replaces its section of the report:
#       machine      names and versions, and what is not found
#       compare      test_gpu: each operation on the GPU and on the CPU
#       speed        training steps: ResNet-50 in bf16, LSTM, ResNet-20
#       torch        the first two in PyTorch, eager and compiled
#       train        whole runs: images, characters, four learners, NCCL with one rank
#       tests        the libraries' other tests, side by side
#       sanitize     compute-sanitizer's four tools on the kernels
#       profile      ResNet-50's layers, then its kernels by ncu
#       autotune     ResNet-50 in PyTorch, compiled with max-autotune
#       nccl         NCCL with two ranks; only if it is named
#     --quick        only machine, compare and speed
# Each part ends within nine minutes. Exit codes: 0 all that ran passed, 1 something failed, 2 bad arguments, no
# programs, or no CUDA device.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
known=(machine compare speed torch train tests sanitize profile autotune nccl)
parts=("${known[@]:0:9}") out=gpu-report pack=''

fail() { printf 'gpu-check: %s\n' "$*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --quick) parts=("${known[@]:0:3}") ;;
    --part | --out) [ $# -gt 1 ] || fail "$1 needs a value" ;;&
    --part) IFS=, read -ra parts <<<"$2"; shift ;;
    --out) out=$2; shift ;;
    -*) fail "unknown argument '$1'; known: --quick --part LIST --out FOLDER PACK" ;;
    *) [ -z "$pack" ] || fail "expected one folder, found '$pack' and '$1'"; pack=$1 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || fail "--part: known are ${known[*]}"
for part in "${parts[@]}"; do
  case " ${known[*]} " in *" $part "*) ;; *) fail "--part $part: known are ${known[*]}" ;; esac
done
if [ -n "$pack" ]; then
  [ -f "$pack/heddle.tar.gz" ] || fail "no heddle.tar.gz in $pack; ./run gpu-pack makes it"
else
  for place in "$here" "$here/../.carry/run"; do [ -n "$pack" ] || [ ! -f "$place/heddle.tar.gz" ] || pack=$place; done
fi
mkdir -p "$out" || fail "cannot write to $out"
out=$(realpath "$out")

# What is unpacked, logs and sections stay there for the next call on this machine.
work=${TMPDIR:-/tmp}/heddle-gpu-$(id -u)
bin=$work/bin logs=$work/logs sections=$work/sections
[ ! -L "$work" ] && mkdir -p "$logs" "$sections" && [ -O "$work" ] && rm -f "$work/failed" || fail "$work: expected a folder of your own"
gpu=0
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && gpu=1

# ------------------------------------------------------------------------------------------- report
row() { printf '| %s | %s | %d |\n' "$@" | tee -a "$sections/$part.rows"; }  # WHAT RESULT SECONDS
tell() { tee -a "$sections/$part.text"; }
not_run() { echo "not run: $*" | tell; }

# Writes anew what comes back: the machine may be gone before the next command. Commands may run side by side.
renew() {
  local name new=$out/.new.$BASHPID
  {
    printf '# GPU report\n'
    for name in build "${known[@]}"; do
      [ -e "$sections/$name.head" ] || continue
      printf '\n## '; cat "$sections/$name.head"
      [ -s "$sections/$name.rows" ] && { printf '\n| what | result | s |\n|---|---|---|\n'; cat "$sections/$name.rows"; }
      [ -s "$sections/$name.text" ] && { printf '\n```\n'; cat "$sections/$name.text"; printf '```\n'; }
    done
  } >"$new" && mv "$new" "$out/gpu-report.md"
  tar -C "$logs" -czf "$new" . 2>/dev/null
  mv "$new" "$out/logs.tar.gz"
}

# try SECONDS NAME COMMAND…: a row, and the end of the log if it failed. What a tool writes that cannot work on this
# machine matches $refusal: that is no failure.
refusal=''
try() {
  local limit=$1 name=$2 begin=$SECONDS code=0 log=$logs/$2.log verdict
  shift 2
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 </dev/null || code=$?
  case $code in
    0) verdict=passed ;;
    124 | 137) verdict="**stopped** after $((SECONDS - begin)) s" ;;
    *) verdict="**failed** (exit code $code)" ;;
  esac
  if [ $code != 0 ] && [ -n "$refusal" ] && grep -qE "$refusal" "$log"; then
    verdict="not run: $(grep -m1 -oE "($refusal).*" "$log")" code=0
  fi
  row "$name" "$verdict" $((SECONDS - begin))
  if [ $code != 0 ]; then
    : >"$work/failed"
    { echo "$name:"; grep -E 'ERROR|TEST CASE' "$log" | head -n 12; tail -n 20 "$log"; } | cut -c1-300 | tell
  fi
  renew
  return $code
}
show() { try "$@" && tail -n 12 "$logs/$2.log" | tell; renew; }  # the same, with the end of the output

# -------------------------------------------------------------------------------------------- parts
quietly=(--device cuda --quiet --output-dir)
resnet50=(resnet50 --device cuda --batch 256 --precision bf16)
tool() { command -v "$1" || ls "/usr/local/cuda/bin/$1" 2>/dev/null; }

part_machine() {
  try 30 program "$bin/train_resnet" --version
  { if [ $gpu = 1 ]; then nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv; fi
    echo "kernel $(uname -r), $(nproc) cores,$(sed -n 's/^model name[^:]*://p' /proc/cpuinfo | head -n 1)"
    cat "$logs/program.log"
    ldd "$bin/train_resnet" | grep -E 'not found|cudart|cublas|cudnn|nccl|dnnl|stdc|gomp'
    python3 -c 'import torch; print("PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version())' 2>/dev/null ||
      echo 'PyTorch: not found'
    for name in nvcc compute-sanitizer ncu; do tool $name || echo "$name: not found"; done
  } 2>&1 | tell
}

part_compare() {
  try 200 test_gpu env HEDDLE_TEST_DEVICE=cuda "$bin/test_gpu"
  grep '^compare ' "$logs/test_gpu.log" | sort >"$out/compare.txt"
  [ -s "$out/compare.txt" ] || : >"$work/failed"
  echo "$(grep -F 'test cases:' "$logs/test_gpu.log"); compared: $(wc -l <"$out/compare.txt") operations and shapes" | tell
}

part_speed() {
  local flags=(--rounds 1 --no-torch)
  show 90 resnet50 "$bin/bench" "${resnet50[@]}" "${flags[@]}" --warmup 10 --steps 40
  show 60 lstm "$bin/bench" lstm --device cuda --precision fp32 "${flags[@]}" --warmup 20 --steps 200
  show 60 resnet20 "$bin/bench" resnet20 --device cuda --precision fp32 "${flags[@]}" --warmup 20 --steps 200
}

# torch_step SECONDS CASE MODE STEP-FLAG…: the case's flags are those of `bench`.
torch_step() {
  local limit=$1 name=torch_$2_$3 mode=$3 flags=(--arch lstm_lm --batch 20 --bptt 35 --clip 5)
  [ "$2" = lstm ] || flags=(--arch resnet50 --stem imagenet --image-size 224 --classes 1000 --batch 256 --layout nhwc
    --precision bf16 --momentum 0.9 --weight-decay 1e-4)
  shift 3
  try "$limit" "$name" python3 -Wignore "$bin/torch_step.py" --device cuda --best --threads "$(nproc)" --compile "$mode" \
    "${flags[@]}" "$@" && python3 -c 'import json, statistics, sys
r = json.loads(sys.stdin.read().splitlines()[-1])
print(sys.argv[1], r["torch"], "median %.3f ms, min %.3f ms" % (statistics.median(r["ms"]), min(r["ms"])))' \
    "$name" <"$logs/$name.log" | tell
  renew
}
have_torch() { python3 -c 'import torch' 2>/dev/null || { not_run 'no PyTorch'; return 1; }; }
part_torch() {
  have_torch || return
  torch_step 70 resnet50 none --warmup 10 --steps 40
  torch_step 220 resnet50 default --warmup 10 --steps 40
  torch_step 60 lstm none --warmup 20 --steps 200
  torch_step 120 lstm default --warmup 20 --steps 200
}
part_autotune() { have_torch && torch_step 500 resnet50 max-autotune --warmup 10 --steps 40; }

part_train() {
  local small=(--image-size 16 --steps 20) text=()
  rm -rf "$work/runs"
  [ -e "$work/data/tinyshakespeare/input.txt" ] && text=(--data "$work/data/tinyshakespeare/input.txt")
  try 90 shapes "$bin/train_resnet" "${quietly[@]}" "$work/runs/shapes" --precision bf16 --arch resnet18 --epochs 2 --json
  try 90 characters "$bin/train_lm" "${quietly[@]}" "$work/runs/characters" "${text[@]}" --steps 400 --json
  try 90 learners "$bin/train_resnet" "${quietly[@]}" "$work/runs/learners" "${small[@]}" --batch-size 8 --learners 4 \
    --compress scalecom:rate=50 --compress-start 2
  try 90 nccl_one_rank "$bin/train_resnet" "${quietly[@]}" "$work/runs/nccl" "${small[@]}" --batch-size 32 --comm nccl \
    --compress qsgd --compress-start 1
}

# Nothing is timed, so all run at once.
part_tests() {
  local name names=(test_core test_layers test_compress test_optim test_golden)
  for name in "${names[@]}"; do try 300 "$name" env HEDDLE_TEST_DEVICE=cuda "$bin/$name" & done
  wait
  for name in "${names[@]}"; do echo "$name: $(grep -F 'test cases:' "$logs/$name.log")"; done | tell
}

# Without the pool: within its segments the tools would not see where a block ends.
part_sanitize() {
  local sanitizer name
  sanitizer=$(tool compute-sanitizer) || { not_run 'no compute-sanitizer'; return; }
  local refusal='Device not supported|Unable to .*(driver|device|inject)'
  # Racecheck took more than 100 s on an H100 where the others took 5 to 30, most of it for the learners' exchanges.
  local limit=60 cases=()
  for name in memcheck initcheck synccheck racecheck; do
    [ $name = racecheck ] && limit=330 && cases=(--test-case-exclude='*three ranks*')
    try $limit $name env HEDDLE_NO_POOL=1 HEDDLE_TEST_DEVICE=cuda "$sanitizer" --tool $name --error-exitcode 9 \
      "$bin/test_gpu" --test-case='kernels*' "${cases[@]}"
  done
}

part_profile() {
  local ncu refusal=''
  show 90 layers "$bin/bench" ops "${resnet50[@]}" --warmup 5 --steps 3
  ncu=$(tool ncu) || { not_run 'no ncu'; return; }
  refusal='ERR_NVGPUCTRPERM|[Pp]rofiling is not supported'
  try 150 ncu "$ncu" --profile-from-start off --clock-control none --csv --log-file "$logs/ncu_resnet50.csv" \
    --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum \
    "$bin/bench" ops "${resnet50[@]}" --warmup 5 --steps 1
}

# Two ranks on one card wait for each other within one context: nothing may be loaded or freed meanwhile.
part_nccl() {
  local refusal='ranks .* have the same GPU'
  try 150 nccl_two_ranks env CUDA_MODULE_LOADING=EAGER NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 NCCL_NVLS_ENABLE=0 \
    NCCL_ALGO=RING NCCL_DEBUG=WARN "$bin/train_resnet" "${quietly[@]}" "$work/runs/nccl2" --image-size 16 --steps 20 \
    --batch-size 16 --learners 2 --comm nccl
  grep -qE "$refusal" "$logs/nccl_two_ranks.log" &&
    not_run 'two ranks need two GPUs, or NCCL 2.30 or newer and a build that lets ranks share one'
}

# ------------------------------------------------------------------------------------------ programs
start() { part=$1; rm -f "$sections/$part".*; printf '%s\n' "$part, $(date -u +%F)" | tee "$sections/$part.head"; }

# Without a pack the tree makes one for this card, anew in each call: only what has changed is compiled.
build() {
  [ -x "$here/gpu_pack.sh" ] || fail "no heddle.tar.gz in $here; ./run gpu-pack makes it"
  tool nvcc >/dev/null || fail 'no pack in .carry/run (./run gpu-pack makes it), and no nvcc to build with'
  local arch
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
  start build
  pack=$work/pack
  try 540 build "$here/gpu_pack.sh" --arch "$arch" "$pack" || exit 1
}

unpack() {
  local sum
  sum=$(cksum <"$pack/heddle.tar.gz")
  [ "$sum" = "$(cat "$work/unpacked" 2>/dev/null)" ] && return
  rm -rf "${work:?}"/{bin,lib,fallback,data,source,unpacked} "${sections:?}"/[!b]* "${logs:?}"/*
  tar -C "$work" -xzf "$pack/heddle.tar.gz" ||
    fail "$pack/heddle.tar.gz cannot be unpacked"
  printf '%s\n' "$sum" >"$work/unpacked"
}

# Lets tests find golden values under the path of the sources that they were built from.
link_source() {
  linked=$(cat "$work/source_path")
  [ ! -e "$linked" ] && mkdir -p "$(dirname "$linked")" && ln -sfn "$work/source" "$linked" && trap 'rm -f "$linked"' EXIT
}

# Python's libraries come before those of CUDA's folder, and the packed runtimes of C++ and OpenMP only where this
# machine's do not do.
find_libraries() {
  local places choice
  places=$work/lib:$(python3 - <<'PY'
import glob, site, sys
for place in dict.fromkeys([*sys.path, *site.getsitepackages(), site.getusersitepackages()]):
    for folder in sorted(glob.glob(place + "/nvidia/*/lib")) if place else []:
        print(folder, end=":")
PY
  )/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  for choice in "$places" "$places:$work/fallback" "$work/fallback:$places"; do
    export LD_LIBRARY_PATH=$choice
    "$bin/train_resnet" --version >/dev/null 2>&1 && return
  done
}

[ -n "$pack" ] || [ $gpu = 0 ] || build
if [ -n "$pack" ]; then
  unpack
  link_source
  find_libraries
fi
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$work/inductor TORCHINDUCTOR_FX_GRAPH_CACHE=1
for part in "${parts[@]}"; do
  start "$part"
  [ $gpu = 1 ] || echo 'no CUDA device' | tell
  if [ $gpu = 1 ] || [ "$part ${pack:+packed}" = 'machine packed' ]; then "part_$part"; fi
  renew
done
echo "see $out/gpu-report.md"
[ ! -e "$work/failed" ] || exit 1
[ $gpu = 1 ] || exit 2
