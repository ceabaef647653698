#!/usr/bin/env bash
# Learners as a user would start them: threads of one process, overlapped or not, and processes under
# mpirun must give the same losses bit for bit; four learners equal one with four times the batch; bad
# input and failures end every rank.
#   tests/test_program_learners.sh build/train_resnet build/train_lm [mpirun]
set -u
sources=$(cd "$(dirname "$0")/.." && pwd)
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$sources/tests/program.sh"

# ----------------------------------------------------------------------------------------- images
images=(--image-size 8 --steps 6 --threads 1 --print-freq 4 --deterministic --quiet --json)
"$resnet" "${images[@]}" --batch-size 4 --learners 4 --output-dir four >four.json || fail 'four learners'
"$resnet" "${images[@]}" --batch-size 4 --learners 4 --overlap off --bucket-mb 4 --output-dir off >/dev/null || fail 'overlap off'
same_losses four off 'exchange after backward'
"$resnet" "${images[@]/4/5}" --batch-size 4 --learners 4 --output-dir seldom >/dev/null || fail 'print-freq'
same_losses four seldom 'losses averaged over different numbers of steps'
"$resnet" "${images[@]}" --batch-size 4 --learners 4 --net 500mbit,1ms --output-dir net >/dev/null || fail 'slow network'
same_losses four net 'on a slow network'
[ "$(json four.json world_size)" = 4 ] || fail "world_size: $(cat four.json)"
[ "$(json four.json bytes_sent)" -gt "$(json four.json bytes_dense)" ] || fail "bytes: $(cat four.json)"
[ "$(grep -c '"split":"train"' four/metrics.jsonl)" = 6 ] || fail 'expected one line for every step'
[ -s four/model.safetensors ] || fail 'no weights'
grep -q '"t_exposed":' four/metrics.jsonl || fail 'no t_exposed in the metrics'
loud=(); for flag in "${images[@]}"; do [ "$flag" = --quiet ] || loud+=("$flag"); done
"$resnet" "${loud[@]}" --batch-size 4 --learners 3 --bucket-mb 0.2 --trace t.json --trace-steps 3:4 --ledger \
  --output-dir seen >seen.json 2>seen.err || fail 'ledger and trace'
grep -q '^layer3.0.conv1.weight  *[1-9]' seen.err || fail "no table of bytes: $(tail -5 seen.err)"
python3 - <<'CHECK' || fail "the ledger in the metrics is not all that was sent: $(cat seen.json)"
import json
ledger = [json.loads(line)["ledger"] for line in open("seen/metrics.jsonl") if line.startswith('{"ledger"')]
sent = sum(kind["sent"] for layer in ledger[-1].values() for kind in layer.values())
assert sent == json.load(open("seen.json"))["bytes_sent"], sent
CHECK
for event in '"ph":"s".*"pid":2' '"ph":"t".*"pid":0' '"ph":"f".*"pid":1' '"comm"' '"wait"' '"rank 2"'; do
  grep -q "$event" t.json || fail "not in the trace: $event"
done
"$resnet" "${images[@]}" --batch-size 4 --learners 2 --compress scalecom:rate=20 --compress-start 1 --trace t.json --trace-steps 3:4 --explain-step 4 \
  --output-dir phases >/dev/null || fail 'a trace of the phases'
for event in '"compensate","ph":"X"' '"select, as the leader","ph":"X","pid":1' '"residuals, sums","ph":"X"' \
  '"host memory","ph":"C","pid":1.*"in use":[1-9]' '"select: layer3.0.conv1.weight","ph":"i","pid":0.*"chosen":[1-9].*"place":"compress/'; do
  grep -q "$event" t.json || fail "not in the trace: $event"
done
[ "$(grep -c '"ph":"i"' t.json)" -ge "$(grep -c '/[a-z_]*\.cpp:[0-9]*$' phases/explain-4.txt)" ] || fail 'fewer marks in the trace than lines of the explanation'

# Where steps are slow, people and files are not left waiting for --print-freq of them.
"$resnet" --image-size 8 --batch-size 4 --threads 1 --learners 2 --net 6mbit,1ms --steps 9 --quiet --output-dir slow >/dev/null & pid=$!
for i in {1..150}; do grep -qs '"step":1,' slow/metrics.jsonl && break; sleep 0.1; done
sleep 2  # by now the rest of that write is in the file, too
grep -qs '"step":1,' slow/metrics.jsonl && ! grep -q '"step":9,' slow/metrics.jsonl || fail 'no loss before the end of nine slow steps'
wait $pid || fail 'slow steps'
[ "$(grep -c '"split":"train"' slow/metrics.jsonl)" = 9 ] || fail 'expected one line for every slow step'

# The choice by bucket: compressed where the network is slow, and the run says so.
"$resnet" --image-size 8 --batch-size 4 --threads 1 --learners 2 --net 20mbit,1ms --steps 30 --compress auto \
  --compress-start 3 --bucket-mb 0.25 --print-freq 5 --output-dir auto >/dev/null 2>auto.err || fail 'auto'
# After step 15, or 21 where the choice had to be measured first.
[ -s auto/exchange-15.json ] || [ -s auto/exchange-21.json ] || fail "auto: $(ls auto)"
grep -q '"compressed":true,"joined":[a-z]*,"dense":{"ready_s":' auto/exchange-*.json || fail "auto: $(cat auto/exchange-*.json)"
grep -q '"choices":{"' auto/report.html || fail 'no choices in the report'
refuse 'auto' "$resnet" --compress auto:none
refuse '--deterministic' "$resnet" --learners 2 --compress auto --deterministic
refuse '--layerwise' "$resnet" --compress auto --layerwise lgreco
refuse 'rate' "$resnet" --learners 2 --compress scalecom:rat=20
refuse 'bits.*\b9' "$resnet" --compress auto:qsgd:bits=9

# Seconds depend on the machine, but the verdict must follow from what was measured, and a segment of 256 KiB must not
# take less than the link's 1 ms and 20 Mbit/s.
"$resnet" --image-size 8 --batch-size 4 --threads 1 --learners 2 --net 20mbit,1ms --headroom 8 --json --quiet >headroom.json ||
  fail 'headroom'
grep -o '{"exchange":"[^}]*"gain":[^,}]*' headroom.json | sed 's/.*"exchange":"\([^"]*\)".*"gain":/\1 /' |
  awk -v share="$(json headroom.json communication_share)" -v most="$(json headroom.json most)" -v rate="$(json headroom.json mbit_per_s)" \
    -v latency="$(json headroom.json latency_s)" -v best="$(json headroom.json best)" '
    $1 != "no" && (top == "" || $2 > gain[top]) { top = $1 } { gain[$1] = $2 }
    END { off = share == 0 && most < 1 ? 0 : most * (1 - share) - 1
          segment = 8 * 262144 / 1e6
          exit !(NR == 6 && gain["dense"] == 1 && off < 1e-9 && off > -1e-9 && share < 1 && rate > 0 &&
                 latency + segment / rate > 0.99 * (1e-3 + segment / 20) &&
                 best == "\"" (top == "dense" ? "none" : top) "\"") }' || fail "headroom: $(cat headroom.json)"
grep -q '{"exchange":"dense","steps":[2-9]' headroom.json || fail "headroom: steps of dense exchanges: $(cat headroom.json)"
[ -e runs ] && fail 'headroom leaves a run folder behind'
"$lm" --batch-size 2 --bptt 8 --nhid 16 --emsize 16 --threads 1 --learners 2 --headroom 1 --quiet --json | grep -q '"best":' ||
  fail 'headroom of a language model'
"$resnet" --image-size 8 --batch-size 4 --threads 1 --learners 2 --headroom 1 --quiet --compress scalecom:rate=20 \
  --compressed-momentum residual >headroom.txt 2>&1 || fail "headroom with a rule of momentum: $(tail -1 headroom.txt)"
refuse '--headroom' "$resnet" --headroom 5

packed=(--batch-size 4 --compress-start 2 --compress)
"$resnet" "${images[@]}" "${packed[@]}" scalecom:rate=50 --learners 4 --output-dir scalecom >scalecom.json || fail 'scalecom'
"$resnet" "${images[@]}" "${packed[@]}" qsgd --learners 4 --output-dir qsgd >qsgd.json || fail 'qsgd'
awk -v a="$(json scalecom.json ratio_layers)" -v b="$(json scalecom.json ratio_wire)" -v c="$(json qsgd.json ratio_wire)" \
  -v d="$(json four.json ratio_wire)" 'BEGIN { exit !(a > 45 && a <= 50.5 && b > 25 && b < a && c > 5 && c < 8 && d == 1) }' ||
  fail "ratios: $(cat scalecom.json qsgd.json)"
# Eighteen tensors of ResNet-20, 267,264 of its 269,722 values, have 5,359 chunks of 50. Two of the six steps are dense, and
# dense steps also send the padding between tensors: 270,852 values (1,625,112 bytes of a ring of four).
awk -v layers="$(json scalecom.json ratio_layers)" -v values="$(json scalecom.json ratio_values)" -v wire="$(json scalecom.json ratio_wire)" \
  -v run="$(json scalecom.json ratio_run)" 'function near(a, b, by) { return a > b * (1 - by) && a < b * (1 + by) }
    BEGIN { exit !(near(layers, 267264 / 5359, 1e-6) && near(values, 269722 / (269722 - 267264 + 5359), 1e-6) &&
                   near(run, 6 / (2 * 270852 / 269722 + 4 / wire), 1e-3)) }' || fail "ratios by counting: $(cat scalecom.json)"

# Dense steps at the start dominate the bytes of a short run; coded ones send an eighth, and are no part of the ratios.
"$resnet" "${images[@]}" "${packed[@]}" scalecom:rate=50 --start-compress qsgd:bits=4 --learners 4 --output-dir coded >coded.json 2>coded.err ||
  fail 'a coded start'
[ "$(json scalecom.json ratio_layers) $(json scalecom.json ratio_wire)" = "$(json coded.json ratio_layers) $(json coded.json ratio_wire)" ] &&
  awk -v a="$(json scalecom.json ratio_run)" -v b="$(json coded.json ratio_run)" 'BEGIN { exit !(a < 3 && b > 12) }' ||
  fail "ratios of a coded start: $(cat scalecom.json coded.json)"
refuse '"powersgd" is not known; expected one of none, bf16, fp16, qsgd' "$resnet" --compress topk --start-compress powersgd
refuse '--start-compress needs --compress' "$resnet" --start-compress bf16

# One step explained in text: what happened in it, in order, with the numbers of its line of metrics, and
# without changing a bit of the run.
metric() { sed -n "s/^{\"step\":$2,.*\"$3\":\([^,}]*\).*/\1/p" "$1/metrics.jsonl"; }
told=("${loud[@]}" "${packed[@]}" scalecom:rate=50 --learners 4 --bucket-mb 0.25)
"$resnet" "${told[@]}" --quiet --output-dir untold >/dev/null && "$resnet" "${told[@]}" --explain-step 6 --output-dir told \
  >/dev/null 2>told.err || fail '--explain-step'
same_losses untold told 'with a step explained'
cmp untold/model.safetensors told/model.safetensors || fail 'weights with a step explained'
story=told/explain-6.txt
grep -qF "$(sed -n 20p $story)" told.err || fail "the explanation is not on stderr: $(head -c 500 told.err)"
grep -q '^Step 6 .*train_resnet, epoch 1,.* 4 ' $story || fail "heading: $(head -3 $story)"
at() { awk -v what="$1" '/^ *[0-9.]+ +(main|comm) / && index($0, " " what " ") { printf "%s ", $3 }' $story; }
layer=layer3.0.conv1.weight
[ "$(at $layer)" = 'final compensate select residual update ' ] || fail "events of $layer: $(at $layer)"
[ "$(at 'bucket 0')" = 'bucket select exchange exchange summed ' ] || fail "events of bucket 0: $(at 'bucket 0')"
[ "$(at fc.bias)" = 'final update ' ] || fail "a dense parameter: $(at fc.bias)"
grep -q 'select .* bucket 0 .* leader: rank 1,' $story || fail 'expected rank 5 mod 4 as the leader of step 6'
awk '/^ *[0-9.]+ +(main|comm) / { if ($1 < last) exit 1; last = $1; n++ } END { exit !(n > 100) }' $story ||
  fail 'times do not increase'
for pair in 'final update' 'compensate residual' 'bucket summed'; do
  [ "$(grep -cE "(main|comm)  ${pair% *} " $story)" = "$(grep -cE "(main|comm)  ${pair#* } " $story)" ] || fail "unequal: $pair"
done
[ "$(awk '$3 == "final" { n += $5 } END { print n }' $story)" = 269722 ] || fail 'elements of all layers'
# The energy kept and the norms must agree: the residual is what was not sent.
awk -v layer=$layer 'index($0, layer) && match($0, /together [0-9.]+/) { x = substr($0, RSTART + 9, RLENGTH - 9) }
  index($0, layer) && match($0, /kept [0-9.]+/) { kept = substr($0, RSTART + 5, RLENGTH - 5) / 100 }
  index($0, layer) && /  residual  / && match($0, /norm [0-9.]+/) { m = substr($0, RSTART + 5, RLENGTH - 5) }
  END { e = m * m / (x * x) - (1 - kept); exit !(x > 0 && kept > 0.02 && kept < 1 && e * e < 1e-6) }' $story ||
  fail "energy and residual: $(grep $layer $story)"
[ "$(grep -o 'Total: sent [0-9]*' $story)" = "Total: sent $(metric told 6 bytes_sent)" ] || fail "bytes: $(tail -3 $story)"
for kind in exchange summed; do
  [ "$(awk -v kind=$kind '$3 == kind && match($0, /sent [0-9]+/) { n += substr($0, RSTART + 5, RLENGTH - 5) } END { print n }' $story)" \
    = "$(metric told 6 bytes_sent)" ] || fail "bytes of lines '$kind': $(metric told 6 bytes_sent)"
done
grep -q 'between .*losses' $story && fail 'expected no losses between steps 5 and 6'
[ "$(grep -cF "lr $(printf %.4g "$(metric told 6 lr)")," $story)" -gt 20 ] || fail "lr: $(metric told 6 lr)"
grep -q "waited $(awk -v s="$(metric told 6 t_exposed)" 'BEGIN { printf "%.3f", 1e3 * s }') ms" $story || fail "t_exposed: $(tail -3 $story)"
grep -oE '[a-z]+/[a-z_]+\.[a-z]+:[0-9]+$' $story | sort -u >places
[ "$(wc -l <places)" -ge 9 ] || fail "places: $(cat places)"
while IFS=: read -r file line; do
  sed -n "${line}p" "$sources/$file" | grep -qE 'explain|ledger\.book|ledger_\.book' || fail "no explanation at $file:$line"
done <places
"$resnet" "${told[@]}" --learners 2 --compress powersgd:rank=1 --explain-step 5 --output-dir told5 >/dev/null 2>&1 || fail 'powersgd explained'
grep -q 'between .*losses' told5/explain-5.txt || fail "losses: $(tail -3 told5/explain-5.txt)"
"$resnet" "${told[@]}" --learners 2 --compress qsgd --explain-step 5 --output-dir told_qsgd >/dev/null 2>&1 || fail 'qsgd explained'
grep -q 'select .*\b4\b.* [1-9][0-9.]*' told_qsgd/explain-5.txt || fail "qsgd: $(grep select told_qsgd/explain-5.txt)"
# A step's gradients, dumped: neither the run nor what the algorithm sends of them changes, and the lab reads them.
"$resnet" "${told[@]}" --quiet --dump-gradients 6 --output-dir dumped >/dev/null 2>dumped.err || fail "--dump-gradients: $(tail -1 dumped.err)"
same_losses untold dumped 'with gradients dumped'
cmp untold/model.safetensors dumped/model.safetensors || fail 'weights with gradients dumped'
"${resnet%/*}/bench" compress --gradients dumped/gradients-6.safetensors --threads 1 --steps 1 --compress scalecom:rate=20 >lab.txt || fail 'gradients in the lab'
grep -q 'gradients-6.safetensors.* 269722 .* 59 ' lab.txt || fail "not all gradients: $(head -1 lab.txt)"
"$resnet" "${images[@]}" --batch-size 4 --explain-step 2 --output-dir told_alone >/dev/null 2>alone.err || fail 'one learner explained'
[ ! -s alone.err ] || fail "--quiet: $(head -3 alone.err)"
[ "$(awk '$2 == "main" { print $3 }' told_alone/explain-2.txt | sort -u | tr '\n' ' ')" = 'final update ' ] || fail 'an exchange of one learner'
refuse '--explain-step 60.* 6$' "$resnet" "${loud[@]}" --batch-size 4 --explain-step 60
refuse '--explain-step 60.* 6$' "$resnet" "${loud[@]}" --batch-size 4 --explain-step 60 --resume auto
refuse '--trace-steps 50:60.* 6$' "$resnet" "${loud[@]}" --batch-size 4 --trace late.json --trace-steps 50:60
[ ! -e late.json ] || fail 'a trace of no step'
"$resnet" "${images[@]}" --batch-size 4 --trace nowhere/t.json --output-dir within >within.out 2>&1 && fail 'a trace in a folder that is not there'
[ ! -e within ] || fail "a refused trace has left $(ls within)"
"$resnet" "${images[@]}" --batch-size 4 --steps 4 --save-every 2 --trace within/trace.json --output-dir within >within.out 2>&1 ||
  fail "a trace in a new run folder: $(tail -1 within.out)"
rm within/trace.json
"$resnet" "${images[@]}" --batch-size 4 --steps 6 --trace within/trace.json --output-dir within --resume auto >within.out 2>&1 &&
  grep -q '"traceEvents"' within/trace.json || fail "a trace in a resumed run's folder: $(tail -1 within.out)"
refuse '--explain-step' "$resnet" --explain-step 0
refuse '--dump-gradients 60.* 6$' "$resnet" "${loud[@]}" --batch-size 4 --dump-gradients 60

planned=(--image-size 8 --steps 15 --threads 1 --print-freq 4 --deterministic --learners 3 "${packed[@]}" scalecom:rate=50 --layerwise lgreco
  --lgreco every=8,window=4 --shadow 5)
"$resnet" "${planned[@]}" --output-dir planned >/dev/null 2>planned.err || fail 'layer plans'
[ "$(grep -c '^{"step":[0-9]*,"quality":{"' planned/metrics.jsonl)" = 3 ] || fail 'expected 3 lines of quality'
grep -q '^layer3.0.conv1.weight  *0\.[0-9]* .*0\.[0-9]*$' planned.err || fail "no table of quality: $(tail -30 planned.err)"
grep -q '^done.* [1-9][0-9]* MB.* [1-9][0-9]* MB' planned.err || fail "no mention of memory: $(grep done planned.err)"
grep -q '"name": "layer3.0.conv1.weight"' planned/plan-12.json || fail "plan: $(head -c 600 planned/plan-12.json)"
awk -v a="$(sed -n 's/^  "bytes": \(.*\),/\1/p' planned/plan-12.json)" -v b="$(sed -n 's/^  "uniform_bytes": \(.*\),/\1/p' planned/plan-12.json)" \
  'BEGIN { exit !(a > 0 && a < b) }' || fail "a plan that saves nothing: $(head -12 planned/plan-12.json)"
"$resnet" "${planned[@]}" --quiet --overlap off --output-dir planned_off >/dev/null || fail 'layer plans, overlap off'
same_losses planned planned_off 'layer plans, overlap on and off'
cmp -s planned/plan-12.json planned_off/plan-12.json || fail 'plans of two runs differ'
sed 's/"setting": .*/"setting": 50.0,/' planned/plan-12.json >uniform.json
plan=("${images[@]}" "${packed[@]}" scalecom:rate=50 --learners 3)
"$resnet" "${plan[@]}" --output-dir plain >/dev/null && "$resnet" "${plan[@]}" --plan uniform.json --output-dir uniform >/dev/null &&
  "$resnet" "${plan[@]}" --plan planned/plan-12.json --output-dir replay >/dev/null || fail 'plans that are replayed'
same_losses plain uniform 'a plan of uniform settings'
[ "$(losses replay)" != "$(losses plain)" ] || fail 'a plan that changes nothing'
[ -z "$(ls replay | grep plan-)" ] || fail 'a plan of a run that makes none'
"$resnet" "${planned[@]}" --lgreco every=4,window=2,budget=accordion --output-dir adaptive >/dev/null 2>adaptive.err ||
  fail "budget=accordion: $(tail -1 adaptive.err)"
grep -q '^  "budget_from": "accordion"' adaptive/plan-6.json || fail "plan: $(head -20 adaptive/plan-6.json)"
grep -q '"critical": false' adaptive/plan-6.json && fail 'a layer that is not critical at the first sample'
[ -s adaptive/plan-14.json ] || fail "plans: $(ls adaptive)"
"$resnet" "${planned[@]/--deterministic/--no-deterministic}" --lgreco every=8,window=4,objective=time --output-dir timed >/dev/null 2>timed.err ||
  fail "objective=time: $(tail -1 timed.err)"
awk -v a="$(sed -n 's/^  "cost": \(.*\),/\1/p' timed/plan-12.json)" -v b="$(sed -n 's/^  "uniform_cost": \(.*\),/\1/p' timed/plan-12.json)" \
  'BEGIN { exit !(a > 0 && a <= b) }' || fail "a plan that takes longer: $(head -20 timed/plan-12.json)"
"$resnet" "${plan[@]}" --plan timed/plan-12.json --output-dir timed_replay >/dev/null || fail 'a plan by time that is replayed'
# Densities are not whole numbers: a plan of them, replayed by threads and, below, by processes.
"$resnet" "${planned[@]/scalecom:rate=50/topk:density=0.02}" --quiet --output-dir planned_topk >/dev/null || fail 'layer plans of top-k'
topk=("${images[@]}" "${packed[@]}" topk:density=0.02)
"$resnet" "${topk[@]}" --learners 3 --plan planned_topk/plan-12.json --output-dir replay_topk >/dev/null || fail 'a plan of densities that is replayed'
"$resnet" "${topk[@]}" --learners 3 --output-dir plain_topk >/dev/null || fail 'top-k'
[ "$(losses replay_topk)" != "$(losses plain_topk)" ] || fail 'a plan of densities that changes nothing'

# Clipping: before the exchange by default where there are residuals, else after it.
clipped() { "$resnet" "${images[@]}" "${packed[@]}" "$1" --learners 2 --clip-grad-norm 0.1 --output-dir "$2" "${@:3}" >"$2.json" 2>"$2.err" || fail "clipping: $2"; }
clipped topk:density=0.05 clip_default
clipped topk:density=0.05 clip_local --clip-mode local
clipped topk:density=0.05 clip_aggregate --clip-mode aggregate
same_losses clip_default clip_local 'residuals: clipped locally by default'
[ "$(losses clip_default)" != "$(losses clip_aggregate)" ] || fail '--clip-mode aggregate changes nothing'
[ "$(json clip_local.json clipped_steps)" = 0 ] || fail "clipped after the exchange: $(cat clip_local.json)"
[ "$(json clip_aggregate.json clipped_steps)" = 6 ] || fail "not every step is clipped: $(cat clip_aggregate.json)"
awk -v lost="$(json clip_aggregate.json clipped_norm)" 'BEGIN { exit !(lost > 0.1) }' || fail "what was cut off: $(cat clip_aggregate.json)"
clipped bf16 clip_bf16
clipped bf16 clip_global --clip-mode global
same_losses clip_bf16 clip_global 'without residuals: clipped globally by default'
"$resnet" "${loud[@]}" "${packed[@]}" topk:density=0.05 --learners 2 --clip-grad-norm 0.1 --clip-mode aggregate --steps 1 \
  --output-dir clip_warned >/dev/null 2>clip.err || fail 'aggregate'
grep -q -e '--clip-mode aggregate' clip.err || fail "no warning: $(cat clip.err)"
# A leader sends more, and in an odd number of steps one learner leads more often. With top-k all send the same.
"$resnet" "${images[@]}" --batch-size 4 --learners 2 --compress scalecom:rate=50 --compress-start 1 --output-dir led >led.json || fail 'leaders'
awk -v mean="$(json led.json bytes_step_mean)" -v most="$(json led.json bytes_step_max)" -v one="$(json clip_default.json bytes_step_mean)" \
  -v other="$(json clip_default.json bytes_step_max)" 'BEGIN { exit !(mean > 1000 && most > mean && one > 1000 && one == other) }' ||
  fail "bytes of a step: $(cat led.json clip_default.json)"

# ------------------------------------------------------------------------------------------- text
for i in {1..400}; do echo "line $((i % 7)): the cat saw the dog"; done >a.txt
text=(--data a.txt --emsize 12 --nhid 12 --nlayers 1 --dropout 0.1 --bptt 8 --epochs 1 --optimizer sgd --lr 1
  --threads 1 --print-freq 10 --quiet --json)
"$lm" "${text[@]}" --batch-size 2 --learners 3 --output-dir three >three.json || fail 'three learners'
"$lm" "${text[@]}" --batch-size 6 --output-dir one >one.json || fail 'one learner'
a=$(json three.json test_loss) b=$(json one.json test_loss)
awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-8) }' ||
  fail "three learners of 2 columns are not one of 6: $a and $b"

# -------------------------------------------------------------------------------------- processes
if [ -n "$mpirun" ]; then
  ranks 4 "$resnet" "${images[@]}" --batch-size 4 --output-dir mpi4 >mpi.json 2>mpi.err || fail "mpirun: $(cat mpi.err)"
  same_losses four mpi4 'threads and MPI'
  [ "$(wc -l <mpi.json)" = 1 ] || fail "expected the output of one rank only: $(cat mpi.json)"
  [ "$(json mpi.json bytes_sent)" = "$(json four.json bytes_sent)" ] || fail 'bytes of threads and MPI differ'
  ranks 4 "$resnet" "${images[@]}" "${packed[@]}" scalecom:rate=50 --output-dir scalecom_mpi >/dev/null 2>&1 ||
    fail 'scalecom under mpirun'
  same_losses scalecom scalecom_mpi 'threads and MPI, compressed'
  mpi_planned=(); for flag in "${planned[@]}"; do [ "$flag" = --learners ] || [ "$flag" = 3 ] || mpi_planned+=("$flag"); done
  ranks 3 "$resnet" "${mpi_planned[@]}" --quiet --output-dir planned_mpi >/dev/null 2>&1 || fail 'layer plans under mpirun'
  same_losses planned planned_mpi 'threads and MPI, layer plans'
  ranks 3 "$resnet" "${topk[@]}" --plan planned_topk/plan-12.json --output-dir replay_mpi >/dev/null 2>&1 || fail 'a plan of densities under mpirun'
  same_losses replay_topk replay_mpi 'threads and MPI, a plan of densities'
  cmp -s planned/plan-12.json planned_mpi/plan-12.json || fail 'plans of threads and MPI differ'
  ranks 3 "$lm" "${text[@]}" --batch-size 2 --output-dir lm_mpi >/dev/null 2>&1 || fail 'mpirun train_lm'
  same_losses three lm_mpi 'threads and MPI, text'
  # Hosts with other variables, data or flags; folders may have other names.
  echo 'some words in another order, words in some other order' >other.txt
  unlike() { "$mpirun" --allow-run-as-root --oversubscribe -n 1 "$lm" "${@:2}" --output-dir "unlike_$1" : -n 1 env "$1" "$lm" "${@:2}" --output-dir "unlike_$1"; }
  small=(--data other.txt --nhid 8 --bptt 4 --batch-size 1 --threads 1 --steps 2 --quiet)
  says 2 'rank 1.*seed = 1 .*seed = 2' unlike HEDDLE_SEED=2 "${small[@]}"
  [ ! -e unlike_HEDDLE_SEED=2 ] || fail 'a run folder left behind by other flags'
  says 2 'rank 1.*resume = auto' unlike HEDDLE_RESUME=auto "${small[@]}"
  unlike HEDDLE_WORKERS=2 "${small[@]}" 2>err || fail "other workers on one host: $(tail -1 err)"
  says 2 "rank 1.*'s hash" "$mpirun" --allow-run-as-root --oversubscribe -n 1 "$lm" "${small[@]}" --output-dir unlike_text : \
    -n 1 sh -c 'sed s/other/third/g other.txt >third.txt && exec "$@"' sh "$lm" "${small[@]/other.txt/third.txt}" --output-dir unlike_text
  refuse '--learners' ranks 2 "$resnet" --learners 2
  refuse '--comm' ranks 2 "$resnet" --comm threads
  refuse '--net' ranks 2 "$resnet" --net 1mbit
  refuse 'nowhere' ranks 2 "$resnet" --data nowhere
else
  echo 'skipped: ranks under mpirun (no mpirun here)'
fi

# -------------------------------------------------------------------------------------- bad input
refuse '--net' "$resnet" --learners 2 --net 1mbi
refuse '--learners' "$resnet" --net 1mbit
refuse '--learners' "$resnet" --learners 0
refuse 'qsgd' "$resnet" --learners 2 --compress qsdg
refuse 'bits.*\b9' "$resnet" --learners 2 --compress qsgd:bits=9
refuse 'rate' "$resnet" --learners 2 --compress scalecom:rate=0
refuse 'rank' "$resnet" --learners 2 --compress powersgd:rank=-1
refuse '--clip-grad-norm' "$resnet" --learners 2 --compress topk --clip-mode local
refuse 'clip-mode.*loacl' "$resnet" --learners 2 --compress topk --clip-grad-norm 1 --clip-mode loacl
refuse '--compress' "$resnet" --learners 2 --dense-layers fc
refuse 'nosuchlayer' "$resnet" --learners 2 --compress topk --dense-layers nosuchlayer
refuse '--compress' "$resnet" --learners 2 --shadow 5
refuse 'dense.layers' "$resnet" --learners 2 --compress topk --dense-layers '('
for spec in none bf16 fp16 lgc; do refuse "--layerwise.*$spec" "$resnet" --learners 2 --compress $spec --layerwise lgreco; done
refuse 'bf16' "$resnet" --learners 2 --compress bf16 --plan planned/plan-12.json
refuse '--plan' "$resnet" --learners 2 --compress topk --layerwise lgreco --plan planned/plan-12.json
refuse 'alpha' "$resnet" --learners 2 --compress topk --layerwise lgreco --lgreco aplha=2
refuse 'alpha' "$resnet" --learners 2 --compress topk --layerwise lgreco --lgreco alpha=0
refuse 'objective.*speed' "$resnet" --learners 2 --compress topk --layerwise lgreco --lgreco objective=speed
refuse 'budget.*harp' "$resnet" --learners 2 --compress topk --layerwise lgreco --lgreco budget=harp
refuse '--deterministic' "$resnet" --learners 2 --compress topk --layerwise lgreco --lgreco objective=time --deterministic
refuse '--layerwise' "$resnet" --learners 2 --compress topk --lgreco every=5
replay() { refuse "$1" "$resnet" --learners "${4:-3}" --image-size 8 --steps 1 --batch-size 4 --arch "$2" --compress scalecom --plan "$3"; }
refuse 'plan-12.json.*scalecom' "$resnet" --learners 3 --image-size 8 --steps 1 --batch-size 4 --compress topk --plan planned/plan-12.json
replay 'plan-12.json.*layer' resnet18 planned/plan-12.json
replay 'plan-12.json.*layer[1-3]' resnet32 planned/plan-12.json
replay 'plan-12.json.* 3 .*2' resnet20 planned/plan-12.json 2
replay 'a.txt.*JSON' resnet20 a.txt
replay 'nowhere.json' resnet20 nowhere.json
sed 's/"setting": .*/"setting": 0.5,/' planned/plan-12.json >half.json && replay 'layer1.0.conv1.weight.* 0.5' resnet20 half.json
sed 's/"name": "layer3.0.conv1/"name": "layer9.conv/' planned/plan-12.json >other.json && replay 'layer9.conv' resnet20 other.json
sed 's/"family": "/&a\\n/' planned/plan-12.json >other.json && replay 'a?scalecom' resnet20 other.json
sed 's/"name": "layer3/"name": "layer\\n3/' planned/plan-12.json >other.json && replay 'layer?3' resnet20 other.json
sed 's/"layers": \[/&{"name": "a\\nb", "elements": 0, "setting": 5},/' planned/plan-12.json >other.json && replay 'a?b' resnet20 other.json
sed 's/"learners": 3/"learners": 4294967299/' planned/plan-12.json >other.json && replay '4.29497e+09' resnet20 other.json
refuse 'nccl' "$resnet" --learners 2 --comm nccl --device cpu
pixel=iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==
for i in 1 2 3; do mkdir -p images/{train,valid}/$i; base64 -d <<<$pixel | tee images/train/$i/a.png >images/valid/$i/a.png; done
refuse ' 3, .* found 4' "$resnet" --learners 4 --data images --image-size 8 --batch-size 1 --steps 1
refuse 'learners' "$resnet" --learners 2 --evaluate --init four
refuse '2000' "$lm" --data a.txt --learners 2000 --batch-size 100 --threads 1

finish
