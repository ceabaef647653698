#!/usr/bin/env bash
# A generator that learns from noisy votes: what is refused, what a run leaves, the same bits by threads, processes and
# after a resume where noise repeats, and that it learns the classes.
#   tests/test_program_dpgan.sh build/train_dpgan [mpirun]
set -u
gan=$(realpath "$1") || exit 2
mpirun=${2:-}
. "$(dirname "$0")/program.sh"

few=("$gan" --teachers 40 --images-each 10 --threads 1 --no-report --print-freq 1 --teacher-steps 2)

echo 'refused'
refuse 'expected topagg' "${few[@]}" --compress scalecom:rate=100
refuse 'expected topagg' "${few[@]}" --compress none
refuse 'sum to 40.*--dp-anyway' "${few[@]}" --compress topagg:epsilon=0.01
refuse 'learners' "$gan" --teachers 1 --learners 2
refuse 'momentum' "${few[@]}" --momentum 0.5
refuse 'dp-delta' "${few[@]}" --dp-delta 0.1
refuse 'device' "${few[@]}" --device cuda
refuse 'folder' "$gan" --data "$work" --teachers 3
for flag in --dp-unit --dp-rate; do refuse "${flag#--}" "${few[@]}" $flag 1; done

echo 'it learns the classes, without noise'
"$gan" --teachers 40 --images-each 30 --threads 1 --learners 2 --teacher-steps 3 --compress topagg:density=0.2,output=votes --dp-anyway \
  --steps 90 --epochs 2 --json --output-dir learns >learns.json 2>learns.err || fail "learns: $(tail -1 learns.err)"
[ "$(json learns.json valid_acc1 | cut -d. -f1)" -ge 40 ] || fail "accuracy $(json learns.json valid_acc1), a guess has 10"
for step in 45 90; do
  [ "$(head -c 8 learns/samples-$step.png | od -An -tx1 | tr -d ' ')" = 89504e470d0a1a0a ] || fail "samples-$step.png is no PNG file"
done
grep -q 'NOT PRIVATE' <(tail -1 learns.err) || fail 'no noise, and not a word of it'
python3 - learns <<'PYTHON' || fail 'the report shows other samples'
import base64, re, sys
page = open(sys.argv[1] + '/report.html').read()
shown = base64.b64decode(re.search('"samples":"([^"]*)"', page)[1], validate=True)
sys.exit(0 if shown == open(sys.argv[1] + '/samples-90.png', 'rb').read() else 1)
PYTHON
"$gan" --init learns --evaluate --json >again.json 2>again.err || fail "evaluate: $(tail -1 again.err)"
[ "$(json again.json valid_acc1)" = "$(json learns.json valid_acc1)" ] || fail 'the saved generator has another score'

for folder in folders/{train,val}/{a,b}; do mkdir -p $folder && cp learns/samples-90.png $folder; done
refuse 'sorted by class' "${few[@]}" --dp-anyway --data folders
"$gan" --list | grep -q '^compressors: *topagg$' || fail "the compressors: $("$gan" --list)"

echo 'its privacy'
"${few[@]}" --learners 2 --compress topagg:density=0.2,epsilon=10,output=votes --dp-anyway --steps 6 --json --output-dir private \
  >private.json 2>private.err || fail "private: $(tail -1 private.err)"
grep -q '"private":true' private.json || fail 'a run with noise is not private'
grep -q 'the 10 images of one of 40 teachers, replaced' private.json || fail 'the unit is not named'
python3 - private.json <<'P' || fail "epsilon: $(tail -1 private.json)"
import json, math, sys
p = json.loads(open(sys.argv[1]).read())['privacy']
z = p['sigma'] / (2 * math.sqrt(15 * 51))  # 51 of the 256 pixels of 15 pictures
best = min(6 * a / (2 * z * z) + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in range(2, 65))
sys.exit(0 if p['queries'] == 6 and abs(best - p['epsilon']) < 1e-6 and 9.99 < best <= 10 else 1)
P
grep -aq 'teachers, replaced' private/model.safetensors || fail 'the weights do not say it'
refuse 'trained with votes' "${few[@]}" --learners 2 --compress topagg:density=0.2,epsilon=10,output=votes --steps 6 --init private
"${few[@]}" --learners 2 --dp-anyway --dry-run --json >plan.json 2>plan.err || fail "dry run: $(tail -1 plan.err)"
# Of 20 voters a sum takes 6 bits, an answer 16; an all-to-all and an all-gather are half an all-reduce each.
[ "$(json plan.json exchange_bytes_per_step)" = $((15 * 256 * (6 + 16) / 2 / 8)) ] || fail "a step's bytes: $(cat plan.json)"
"${few[@]}" --learners 2 --dp-anyway --dry-run >plan.txt 2>plan.err || fail "dry run: $(tail -1 plan.err)"
grep -q 'teachers, replaced' plan.txt || fail "the plan says nothing of privacy: $(cat plan.txt)"

echo 'the same bits'
seeded=("${few[@]}" --compress topagg:density=0.2,sigma=10,noise-seed=3,output=votes --deterministic --steps 8 --epochs 2)
for learners in 1 2; do
  "${seeded[@]}" --learners $learners --json --output-dir seeded$learners >seeded$learners.json 2>seeded.err || fail "seeded: $(tail -1 seeded.err)"
done
"${seeded[@]}" --learners 2 --save-every 3 --output-dir saved >/dev/null 2>saved.err || fail "saved: $(tail -1 saved.err)"
"${seeded[@]}" --learners 2 --resume saved/checkpoints/step-6 --output-dir resumed >/dev/null 2>resumed.err || fail "resumed: $(tail -1 resumed.err)"
cmp -s seeded2/model.safetensors resumed/model.safetensors || fail 'a resumed run ends with other weights'
# Epochs divide the steps: with more of them a run would resume at another step, or end at once.
says 2 'steps of an epoch: [0-9]* there' "${seeded[@]}" --learners 2 --steps 90 --resume saved/checkpoints/step-6 --output-dir longer
if [ -n "$mpirun" ]; then
  ranks 2 "${seeded[@]}" --output-dir mpi >/dev/null 2>mpi.err || fail "MPI: $(tail -1 mpi.err)"
  cmp -s seeded2/model.safetensors mpi/model.safetensors || fail 'processes and threads end with other weights'
else
  echo 'skipped: MPI (no mpirun here)'
fi
finish
