#!/usr/bin/env bash
# Runs whole programs on the simulated GPU (tests/simulated_gpu): their losses agree with the CPU's, whatever the
# exchange; a resumed run equals an uninterrupted one; a user's mistake ends with one line.
#   tests/test_simulated_gpu.sh build-simulated/train_resnet build-simulated/train_lm build-simulated/train_gcn [mpirun]
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") && gcn=$(realpath "$3") || exit 2
mpirun=${4:-}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
unset "${!HEDDLE_@}"
failures=0

fail() { printf 'FAIL: %s\n' "$*"; failures=$((failures + 1)); }
losses() { sed -n 's/.*"split":"train","loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
run() {  # NAME COMMAND…
  local name=$1; shift
  "$@" --quiet --output-dir "$name" >"$name.out" 2>"$name.err" || fail "$name: $(head -c 500 "$name.err")"
}
same() { [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ] || fail "losses differ: $1 and $2"; }
close_to() {  # NAME NAME BOUND
  paste <(losses "$1") <(losses "$2") | awk -v bound="$3" '
    NF != 2 { bad = 1; exit }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= bound)) bad = 1; ++n }
    END { exit bad || n < 2 }' || fail "losses of $1 and $2 are more than $3 apart: $(losses "$1" | tail -1) $(losses "$2" | tail -1)"
}
both() {  # NAME BOUND COMMAND…: on the CPU and on the simulated GPU
  local name=$1 bound=$2; shift 2
  run "$name-cpu" "$@" --device cpu
  run "$name" "$@" --device cuda
  close_to "$name-cpu" "$name" "$bound"
}
both_in_bf16() {  # NAME BOUND COMMAND…: the CPU has bf16 only with AVX-512
  grep -qw avx512f /proc/cpuinfo && { both "$@" --precision bf16; return; }
  echo 'skipped: bf16 on this processor, which has no AVX-512'
  run "$1" "${@:3}" --precision bf16 --device cuda
}
refuse() {  # CODE PATTERN COMMAND…: with one line
  local expected=$1 pattern=$2 code; shift 2
  "$@" --quiet --output-dir refused >stdout 2>stderr; code=$?
  rm -rf refused
  [ "$code" = "$expected" ] || fail "exit code $code instead of $expected: $* ($(head -c 300 stderr))"
  [ "$(wc -l <stderr)" = 1 ] || fail "expected one line: $(cat stderr) ($*)"
  grep -q -e "$pattern" stderr || fail "'$pattern' is not in: $(cat stderr) ($*)"
}

images=("$resnet" --image-size 8 --steps 6 --threads 1 --print-freq 1 --deterministic --batch-size 8 --lr 0.02)
both alone 2e-3 "${images[@]}" --augment standard
# A low learning rate: at the higher one, six steps of bf16 sums in each device's own order moved the losses 2 % apart.
both_in_bf16 half 1e-2 "${images[@]}" --lr 0.002
run tuned "${images[@]/--deterministic/--tune}" --augment standard --device cuda
close_to alone tuned 2e-3
# With enough memory for the algorithm that cuDNN ranks first, which needs 64 MiB, and without.
run enough "${images[@]}" --steps 2 --batch-size 64 --device cuda
run short env SIMULATED_GPU_MIB=90 "${images[@]}" --steps 2 --batch-size 64 --device cuda
same enough short
for i in {1..120}; do echo "line $((i % 7)): the cat saw the $((i % 11)) dogs"; done >a.txt
words=("$lm" --data a.txt --emsize 24 --nhid 24 --bptt 9 --steps 6 --batch-size 4 --threads 1 --print-freq 1 --deterministic)
both text 2e-3 "${words[@]}" --dropout 0.3
run text-tuned "${words[@]/--deterministic/--tune}" --dropout 0.3 --device cuda  # cuDNN's LSTM
close_to text text-tuned 2e-3
both_in_bf16 tied 2e-2 "${words[@]}" --tied
both readers 2e-3 "${words[@]}" --learners 2 --compress scalecom:rate=20 --compress-start 1 --clip-grad-norm 1

# Graph networks: sparse and dense features, both convolutions, features that travel.
nodes=("$gcn" --data sbm:nodes=300,classes=3 --batch-size 16 --hidden 16 --steps 6 --threads 1 --print-freq 1 --deterministic --learners 2)
both nodes 2e-3 "${nodes[@]}" --dropout 0.3
both convolved 2e-3 "${nodes[@]}" --model gcn --compress scalecom:rate=10 --compress-start 2
mkdir graph
for i in {0..59}; do echo "c$((i % 2))" >&3; echo "0:0.$i $((1 + i % 2)):1.5" >&4; echo "$i $(((i * 7 + 2) % 60))"; done \
  3>graph/labels.txt 4>graph/features.txt >graph/edges.txt
both dense-nodes 2e-3 "${nodes[@]/sbm*/graph}"

# Steps recorded as a graph give the same bits as others. In the text runs the last batch of an epoch is shorter.
run eager "${images[@]}" --augment standard --device cuda --graph off
same eager alone
run recorded "${images[@]}" --augment standard --device cuda --graph on
same eager recorded
epochs=("$lm" --data a.txt --emsize 24 --nhid 24 --bptt 150 --epochs 2 --batch-size 4 --threads 1 --print-freq 1 --deterministic --dropout 0.3)
run text-eager "${epochs[@]}" --device cuda --graph off
run text-recorded "${epochs[@]}" --device cuda --graph on
same text-eager text-recorded
run text-part "${epochs[@]}" --device cuda --save-every 4 --keep 9
"${epochs[@]}" --device cuda --resume text-part/checkpoints/step-4 --quiet --output-dir text-resumed >/dev/null 2>text-resumed.err ||
  fail "resume: $(head -c 500 text-resumed.err)"
[ -n "$(losses text-resumed)" ] && [ "$(losses text-eager | tail -2)" = "$(losses text-resumed | tail -2)" ] ||
  fail "a recorded run resumed: $(losses text-eager | tail -2) and $(losses text-resumed | tail -2)"

# Learners that share a GPU, and learners with one each: the same sums.
few=("${images[@]}" --batch-size 4 --learners 2)
packed=(--compress-start 1 --compress)
both dense 2e-3 "${few[@]}"
run apart "${few[@]}" --overlap off --device cuda
same dense apart
run nccl "${few[@]}" --device cuda --comm nccl
same dense nccl
sharing=(env SIMULATED_GPUS=1 NCCL_MULTI_RANK_GPU_ENABLE=1)
run nccl-shared "${sharing[@]}" SIMULATED_NCCL=23000 "${few[@]}" --device cuda --comm nccl
same dense nccl-shared
for spec in scalecom:rate=50 qsgd; do  # test_gpu compares every step of the others
  name=${spec%%:*}
  both "$name" 5e-2 "${few[@]}" "${packed[@]}" $spec
  run "$name-nccl" "${few[@]}" "${packed[@]}" $spec --device cuda --comm nccl
  same "$name" "$name-nccl"
done
both planned 5e-2 "${few[@]}" "${packed[@]}" scalecom:rate=50 --layerwise lgreco --lgreco every=2,window=1 \
  --clip-grad-norm 1 --shadow 2 --accumulate 2
run planned-nccl "${few[@]}" "${packed[@]}" scalecom:rate=50 --layerwise lgreco --lgreco every=2,window=1 \
  --clip-grad-norm 1 --shadow 2 --accumulate 2 --device cuda --comm nccl
same planned planned-nccl
# Votes: gradients on a GPU, sums on the host; with NCCL the same bits. With noise-seed both devices have the same noise.
voting=("${few[@]}" --arch cnn --batch-size 2 --dp-unit group --dp-rate 0.002 --lr 0.001 --dp-anyway
  --compress topagg:density=0.2,sigma=2,noise-seed=3,output=votes)
both votes 5e-2 "${voting[@]}"
run votes-nccl "${voting[@]}" --device cuda --comm nccl
same votes votes-nccl
both local 5e-2 "${few[@]}" --local-steps 2 --outer-momentum 0.5 --compress topk:density=0.1 --compress-start 1
both delayed 5e-2 "${few[@]}" --local-steps 3 --outer-delay 2 --compress qsgd --compress-start 1
# Learners that talk to neighbours only: with NCCL the same bits, and after a resume.
ring=("${images[@]}" --batch-size 4 --learners 3 --peers ring --innovation dyna)
both peers 5e-2 "${ring[@]}"
run peers-nccl env SIMULATED_GPUS=3 "${ring[@]}" --device cuda --comm nccl --save-every 3 --keep 9
same peers peers-nccl
"${ring[@]}" --device cuda --resume peers-nccl/checkpoints/step-3 --quiet --output-dir peers-resumed >/dev/null 2>peers-resumed.err ||
  fail "resume: $(head -c 500 peers-resumed.err)"
[ -n "$(losses peers-resumed)" ] && [ "$(losses peers | tail -3)" = "$(losses peers-resumed | tail -3)" ] ||
  fail "peers resumed: $(losses peers) and $(losses peers-resumed)"
if [ -n "$mpirun" ]; then
  "$mpirun" -n 2 --allow-run-as-root --oversubscribe "${images[@]}" --batch-size 4 --compress-start 1 --compress scalecom:rate=50 \
    --device cuda:1 --quiet --output-dir processes >/dev/null 2>processes.err || fail "mpirun: $(head -c 500 processes.err)"
  same scalecom processes
  mixed=("${images[@]}" --quiet --output-dir mixed)
  "$mpirun" --allow-run-as-root --oversubscribe -n 1 "${mixed[@]}" --device cpu : -n 1 "${mixed[@]}" --device cuda >/dev/null 2>mixed.err
  [ $? = 2 ] && grep -q 'rank 0 computes on a CPU, rank 1 computes on a GPU' mixed.err || fail "a CPU and a GPU together: $(head -c 500 mixed.err)"
else
  echo 'skipped: ranks under mpirun (no mpirun here)'
fi

# A resumed run.
run whole "${few[@]}" "${packed[@]}" scalecom:rate=50 --device cuda --steps 5
run part "${few[@]}" "${packed[@]}" scalecom:rate=50 --device cuda --steps 5 --save-every 3
[ -d part/checkpoints ] || fail 'no checkpoint'
"${few[@]}" "${packed[@]}" scalecom:rate=50 --device cuda --steps 5 --resume part/checkpoints/step-3 --quiet \
  --output-dir resumed >/dev/null 2>resumed.err || fail "resume: $(head -c 500 resumed.err)"
[ -n "$(losses resumed)" ] && [ "$(losses whole | tail -2)" = "$(losses resumed | tail -2)" ] || fail "resumed: $(losses whole) and $(losses resumed)"

# Evaluation and generation from saved weights, and traces with several streams.
"$resnet" --evaluate --init alone/model.safetensors --device cuda --json >evaluated 2>/dev/null || fail 'evaluate'
"$lm" --init text --generate 20 --prompt the --seed 1 --device cuda >generated 2>/dev/null && [ -s generated ] || fail 'generate'
run traced "${few[@]}" "${packed[@]}" scalecom:rate=50 --device cuda --trace t.json --trace-steps 2:3 --explain-step 3
grep -q '"device memory, exchanges"' t.json || fail 'no memory of the exchanges in the trace'

"${images[@]}" --device cuda --tf32 --dry-run 2>&1 | grep -q '(fp32 products in TF32)' || fail 'no TF32 in the header'
refuse 2 'expected an index below 2' "${images[@]}" --device cuda:7
refuse 2 '--graph on: needs a GPU' "${images[@]}" --device cpu --graph on
refuse 2 '--graph on: is for one learner' "${few[@]}" --device cuda --graph on
refuse 2 '--graph on: not with --accumulate' "${images[@]}" --device cuda --graph on --accumulate 2
refuse 2 'no CUDA device' env SIMULATED_GPUS=0 "${images[@]}" --device cuda
refuse 2 'have the same GPU' env SIMULATED_GPUS=1 SIMULATED_NCCL=23000 "${few[@]}" --device cuda --comm nccl
refuse 2 'have the same GPU' "${sharing[@]}" SIMULATED_NCCL=22900 "${few[@]}" --device cuda --comm nccl
refuse 2 'times the codecs on the CPU' "${few[@]/--deterministic/--no-deterministic}" --device cuda --compress topk --layerwise lgreco --lgreco objective=time
refuse 1 'out of memory on cuda:0: asked for .* are free: lower --batch-size' env SIMULATED_GPU_MIB=40 "${images[@]}" --device cuda --batch-size 512

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo 'the programs do on the simulated GPU what they do on the CPU'
