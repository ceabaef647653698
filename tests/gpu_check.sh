#!/usr/bin/env bash
# Implements ./run gpu-check: builds for the GPU of this machine, runs tests, compares with the CPU,
# measures times, and writes one gpu-report.md. Needs no network. A part that fails does not stop the others,
# a part that is run again replaces only its own section of the report, and each stays below eight
# minutes; with --quick, all of them together take less than five once everything is built.
#   tests/gpu_check.sh [--quick] [--part build,test,sanitize,compare,bench] [--limit SECONDS]
# Exit codes: 0 everything that ran passed, 1 something failed, 2 bad arguments, or no GPU: then only
# the build was tried.
#
# What tests/gpu_pack.sh has packed is unpacked from .carry. cuDNN, NCCL and cuBLAS are taken from
# CUDA's own tree, else from the nvidia folder in Python's site-packages.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
folder=$root/build-cuda
report=$root/gpu-report.md
sections=$folder/report
known=(build test sanitize compare bench)
parts=("${known[@]}")
quick=0 limit=''

say() { printf 'gpu-check: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --help | -h) sed -n '2,/^set -u/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --part | --limit) [ $# -gt 1 ] || fail "$1 needs a value" ;;&
    --part) IFS=, read -ra parts <<<"$2"; shift ;;
    --limit) limit=$2; shift ;;
    *) fail "unknown argument '$1'; known: --quick --part LIST --limit SECONDS" ;;
  esac
  shift
done
given=${limit:+1} && given=${given:-0}
[ -n "$limit" ] || limit=$([ $quick = 1 ] && echo 100 || echo 470)
[[ $limit =~ ^[1-9][0-9]*$ ]] || fail "--limit: expected seconds, found '$limit'"
for part in "${parts[@]}"; do
  case " ${known[*]} " in *" $part "*) ;; *) fail "--part $part: known are ${known[*]}" ;; esac
done
mkdir -p "$sections" || exit 1

# ------------------------------------------------------------------------------------- what is here
gpu=0
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && gpu=1
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
python=$(command -v python3 || true)

# Folders nvidia/*/ of all places that this Python imports from.
site_folders() {
  [ -n "$python" ] || return 0
  "$python" - <<'PY' 2>/dev/null
import glob, site, sys
places = set(sys.path) | set(site.getsitepackages()) | {site.getusersitepackages()}
for place in sorted(p for p in places if p):
    for found in sorted(glob.glob(place + "/nvidia/*/")):
        print(found)
PY
}

# Links what CUDA's tree lacks into a folder with include and lib, where CMake searches. Python's
# libraries come without the plain name that a linker asks for.
link_vendor() {
  local tree vendor=$folder/vendor place file name
  tree=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  rm -rf "$vendor" && mkdir -p "$vendor/include" "$vendor/lib" || return 1
  # shellcheck disable=SC2044
  while IFS= read -r place; do
    for file in "$place"include/*; do
      name=${file##*/}
      [ -e "$file" ] && [ ! -e "$tree/include/$name" ] && ln -sfn "$file" "$vendor/include/$name"
    done
    for file in "$place"lib/lib*.so*; do
      [ -e "$file" ] || continue
      name=${file##*/}
      [ -e "$tree/lib64/$name" ] || ln -sfn "$file" "$vendor/lib/$name"
      [ -e "$tree/lib64/${name%%.so*}.so" ] || ln -sfn "$file" "$vendor/lib/${name%%.so*}.so"
    done
  done < <(site_folders)
  return 0
}

prepend() {  # VARIABLE FOLDER
  [ -d "$2" ] && export "$1=$2${!1:+:${!1}}"
  return 0
}

# Unpacks .carry once per piece and lets compiler, linker, CMake and loader find it.
use_carried() {
  local piece name
  mkdir -p "$folder/deps" "$folder/data"
  for piece in "$root"/.carry/*.tar.gz; do
    [ -e "$piece" ] || continue
    name=${piece##*/}
    [ "$folder/.$name" -nt "$piece" ] && continue
    case $name in deps*) tar -C "$folder/deps" -xzf "$piece" ;; *) tar -C "$folder/data" -xzf "$piece" ;; esac &&
      touch "$folder/.$name" || say "$name cannot be unpacked"
  done
  if [ -e "$folder/deps/lib/libdnnl.so.2" ]; then ln -sfn libdnnl.so.2 "$folder/deps/lib/libdnnl.so"; fi
  for place in "$folder/vendor" "$folder/deps"; do
    prepend CPATH "$place/include"
    prepend LIBRARY_PATH "$place/lib"
    prepend LD_LIBRARY_PATH "$place/lib"
    prepend CMAKE_PREFIX_PATH "$place"
  done
  # cuDNN opens libnvrtc when it compiles an engine, and searches its own folder and these.
  prepend LD_LIBRARY_PATH "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64"
}

data_folder() {  # NAME -> path, empty when it is nowhere
  local place
  for place in "$folder/data" "${HEDDLE_DATA:-$root/../shared/data}"; do
    [ -d "$place/$1" ] && { printf '%s' "$place/$1"; return; }
  done
}

# ------------------------------------------------------------------------------------------- report
status=0
deadline=0  # of the part, in seconds of this shell

left() { echo $((deadline - SECONDS > 1 ? deadline - SECONDS : 1)); }

# try TITLE COMMAND…: a line of the part's table, and the end of the output where it failed.
try() {
  local title=$1 begin=$SECONDS code=0 verdict
  shift
  say "$title"
  timeout --kill-after=10 "$(left)" "$@" >"$sections/output" 2>&1 || code=$?
  case $code in
    0) verdict=passed ;;
    124 | 137) verdict="**stopped** after $((SECONDS - begin)) s: no time was left" ;;
    *) verdict="**failed** (exit code $code)" ;;
  esac
  printf '| %s | %s | %d |\n' "$title" "$verdict" $((SECONDS - begin)) >>"$sections/table"
  if [ $code != 0 ]; then
    status=1
    say "$title: $verdict"
    { printf '\n%s:\n\n```\n' "$title"; tail -n 60 "$sections/output"; printf '```\n'; } >>"$sections/details"
  fi
  return $code
}

keep() {  # TITLE: the last output as it is
  { printf '\n%s:\n\n```\n' "$1"; cat "$sections/output"; printf '```\n'; } >>"$sections/details"
}

# part NAME TITLE FUNCTION: its section, which starts with the table of what was tried.
part() {
  local name=$1 title=$2
  case " ${parts[*]} " in *" $name "*) ;; *) return 0 ;; esac
  deadline=$((SECONDS + limit))
  [ "$name$quick$given" = build10 ] && deadline=$((SECONDS + 470))  # without it there is nothing to test
  : >"$sections/table"
  : >"$sections/details"
  local begin=$SECONDS
  "$3"
  {
    printf '## %s\n\n' "$title"
    [ -s "$sections/table" ] && { printf '| what | result | s |\n|---|---|---|\n'; cat "$sections/table"; }
    cat "$sections/details"
    printf '\n%s%d s in all, on %s.\n' "$([ $quick = 1 ] && echo '--quick, ')" $((SECONDS - begin)) "$(date -u +%F)"
  } >"$sections/$name.md"
  describe_machine >"$sections/machine"
  write_report  # the machine may be gone before the next part
}

not_run() { printf '\nnot run: %s\n' "$1" >>"$sections/details"; }
need_gpu() {  # says why not
  [ $gpu = 1 ] || { not_run 'no GPU'; return 1; }
  [ -x "$folder/$1" ] || { not_run "no $1: the build did not get that far"; status=1; return 1; }
}

# Splits an earlier report into its sections, which may come from another machine or another day.
split_report() {
  [ -f "$report" ] || return 0
  awk -v to="$sections" '
    /^<!-- part [a-z]+ -->$/ { file = to "/" $3 ".md"; printf "" >file; next }
    file != "" { print >file }' "$report"
}

write_report() {
  local name
  {
    printf '# GPU report\n\n'
    cat "$sections/machine"
    for name in "${known[@]}"; do
      printf '\n<!-- part %s -->\n' "$name"
      if [ -s "$sections/$name.md" ]; then cat "$sections/$name.md"; else printf '## %s\n\nnot run\n' "$name"; fi
    done
  } >"$report.new" && mv "$report.new" "$report"
}

describe_machine() {
  printf 'Command: `./run gpu-check%s`\n\n```\n' "$arguments"
  if [ $gpu = 1 ]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv
  else
    echo 'not run: no GPU (nvidia-smi finds none)'
  fi
  [ -x "$nvcc" ] && "$nvcc" --version | tail -n 2
  [ -x "$folder/train_resnet" ] && "$folder/train_resnet" --version
  sed -n 's/^model name[^:]*: /CPU: /p' /proc/cpuinfo | head -n 1
  printf '```\n'
}

# -------------------------------------------------------------------------------------------- parts
kernel_tests=(test_core test_layers test_golden test_compress test_optim test_gpu)

build() {
  [ -x "$nvcc" ] || { not_run 'no nvcc: not on PATH and not in /usr/local/cuda/bin'; status=1; return; }
  local arch=90 options=() targets=(all)
  [ $gpu = 1 ] && arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
  command -v mpicxx >/dev/null || options+=(-DHEDDLE_MPI=OFF)
  [ $quick = 1 ] && targets=(train_resnet train_lm bench "${kernel_tests[@]}")
  try "configure for sm_$arch" cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DHEDDLE_CUDA=ON -DHEDDLE_WERROR=OFF -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$arch" \
    -DCMAKE_BUILD_RPATH="$folder/vendor/lib;$folder/deps/lib" "${options[@]}" || return
  # -k 0: what compiles can be tested even if something else does not.
  try 'compile and link' ninja -k 0 -C "$folder" "${targets[@]}"
  try 'start without asking for a GPU' "$folder/train_resnet" --version && keep 'Versions'
}

run_ctest() {  # TITLE ARGUMENT…
  local title=$1
  shift
  HEDDLE_TEST_DEVICE=cuda try "$title" ctest --test-dir "$folder" -j 4 --timeout "$(left)" --output-on-failure "$@"
  grep -E '^ *[0-9]+/[0-9]+ Test|tests passed|^\[doctest\] test cases' "$sections/output" >"$sections/short"
  cp "$sections/short" "$sections/output"
  keep "$title"
}

# Programs use --device auto, so each of their tests starts CUDA: they come last, should time run out.
run_tests() {
  need_gpu test_core || return
  if [ $quick = 1 ]; then
    run_ctest 'tests of the libraries' -R "^($(IFS='|'; echo "${kernel_tests[*]}"))\$"
    return
  fi
  run_ctest 'tests of the libraries, on the GPU where they have a device' -LE 'check|comm|programs'
  run_ctest 'tests of whole programs, on the GPU' -L programs
}

# Without the pool: within its segments the tools would not see where a block ends.
sanitize() {
  need_gpu test_gpu || return
  local tool sanitizer cases='kernels*'
  sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
  [ -x "$sanitizer" ] || { not_run 'no compute-sanitizer'; return; }
  for tool in memcheck racecheck synccheck; do
    HEDDLE_NO_POOL=1 HEDDLE_TEST_DEVICE=cuda try "$tool of the kernels" "$sanitizer" --tool $tool --error-exitcode 9 \
      "$folder/test_gpu" --test-case="$cases"
    [ $quick = 1 ] && return
  done
  HEDDLE_NO_POOL=1 HEDDLE_TEST_DEVICE=cuda try 'memcheck of whole steps' "$sanitizer" --tool memcheck --error-exitcode 9 \
    --report-api-errors no "$folder/test_gpu" --test-case='steps*'
}

# Losses of two runs, step by step: how far they are apart, relative to the first.
losses() { sed -n 's/.*"split":"train","loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
apart() {  # FOLDER FOLDER BOUND
  paste <(losses "$1") <(losses "$2") | awk -v bound="$3" '
    NF != 2 { print "the runs have different lengths"; bad = 1; exit 1 }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d; ++n }
    END { if (bad || !n) exit 1; printf "%d losses, at most %.2g apart, bound %g\n", n, most, bound; exit most > bound }'
}

compare_runs() {  # TITLE BOUND COMMAND…: the same run on both devices
  local title=$1 bound=$2 device work=$folder/runs
  shift 2
  rm -rf "$work"
  for device in cpu cuda; do
    try "$title, $device" "$@" --device $device --quiet --deterministic --output-dir "$work/$device" || return
  done
  export -f apart losses
  try "$title: both devices agree" bash -c "apart $work/cpu $work/cuda $bound" && cat "$sections/output" >>"$sections/details"
}

compare() {
  need_gpu test_gpu || return
  HEDDLE_TEST_DEVICE=cuda try 'every operation on both devices' "$folder/test_gpu" --test-case='*compare*'
  if grep -h '^compare ' "$sections/output" >"$sections/short"; then
    cp "$sections/short" "$sections/output"
    keep 'Operation, shape, type: distance and bound'
  else
    not_run 'no operation was compared' && status=1
  fi
  local images=("$folder/train_resnet" --image-size 16 --steps 8 --print-freq 1 --batch-size 32)
  compare_runs 'ResNet-20' 2e-2 "${images[@]}"
  compare_runs '8 learners' 2e-2 "${images[@]}" --batch-size 4 --learners 8 --threads 1
  [ $quick = 1 ] && return
  local spec learners=("${images[@]}" --batch-size 8 --learners 4 --threads 1 --compress-start 2)
  for spec in scalecom:rate=50 topk:density=0.05 qsgd powersgd; do
    compare_runs "4 learners, $spec" 5e-2 "${learners[@]}" --compress $spec
  done
  compare_runs '4 learners, accumulated and metered' 5e-2 "${learners[@]}" --compress scalecom:rate=50 \
    --accumulate 2 --shadow 2
  compare_runs '4 learners, local clip and plans' 5e-2 "${learners[@]}" --compress scalecom:rate=50 \
    --clip-grad-norm 1 --layerwise lgreco --lgreco every=4,window=2
  # One rank of NCCL has a worker as soon as something is compressed.
  for spec in scalecom:rate=50 qsgd; do
    try "NCCL with one rank, $spec" "${images[@]}" --comm nccl --device cuda --compress $spec --compress-start 1 \
      --quiet --output-dir "$folder/runs/nccl-${spec%%:*}"
  done
  compare_runs 'LSTM' 2e-2 "$folder/train_lm" --emsize 64 --nhid 64 --steps 8 --print-freq 1 --batch-size 8
  local cifar; cifar=$(data_folder cifar-10-batches-bin)
  if [ -n "$cifar" ] && [ -e "$cifar/test_batch.bin" ] && [ -e "$cifar/data_batch_5.bin" ]; then
    try 'ResNet-20 on CIFAR-10, 2 epochs' "$folder/train_resnet" --data "$cifar" --device cuda --epochs 2 \
      --quiet --json --output-dir "$folder/runs/cifar" && keep 'CIFAR-10, two epochs'
  else
    not_run 'CIFAR-10: not available (tests/gpu_pack.sh packs it)'
  fi
}

# Compiled PyTorch takes minutes before its first step: the most informative cases come first.
measure() {
  need_gpu bench || return
  local case name flags=(--device cuda --rounds 2 --warmup 5 --steps 30)
  local cases=('resnet20' 'resnet50 --batch 256 --precision bf16' 'lstm' 'resnet18 --batch 512 --precision bf16')
  [ $quick = 1 ] && cases=(resnet20 lstm) && flags=(--device cuda --rounds 1 --no-torch)
  for case in "${cases[@]}"; do
    name=${case%% *}
    # shellcheck disable=SC2086
    try "bench $case" "$folder/bench" $case "${flags[@]}" --json "$sections/$name.json" && keep "$case"
  done
}

# --------------------------------------------------------------------------------------------- run
arguments=''
[ $quick = 1 ] && arguments+=' --quick'
[ "${parts[*]}" = "${known[*]}" ] || arguments+=" --part $(IFS=,; echo "${parts[*]}")"
if [ -x "$nvcc" ]; then link_vendor || say 'links to vendor libraries could not be made'; fi
use_carried
split_report
part build 'Build' build
part test 'Tests' run_tests
part sanitize 'Sanitizers' sanitize
part compare 'CPU and GPU' compare
part bench 'Speed' measure
describe_machine >"$sections/machine"
write_report
say "see $report"
[ $gpu = 1 ] || { say 'not run: no GPU'; [ $status = 0 ] && status=2; }
exit $status
