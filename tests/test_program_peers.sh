#!/usr/bin/env bash
# Learners that talk to neighbours only, as a user would start them: overlapped or not, as threads and under mpirun,
# with the same bits; resumed from checkpoints, by as many learners and by others; stopped by a signal on one rank;
# what contradicts itself is refused.
#   tests/test_program_peers.sh build/train_resnet build/train_lm [mpirun]
set -u
sources=$(cd "$(dirname "$0")/.." && pwd)
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$sources/tests/program.sh"

images=("$resnet" --image-size 8 --batch-size 4 --threads 1 --print-freq 4 --deterministic --quiet --json --keep 99)
ring=(--learners 4 --peers ring --innovation qsgd:bits=4)
"${images[@]}" --steps 12 "${ring[@]}" --output-dir ring >ring.json || fail 'ring'
"${images[@]}" --steps 12 "${ring[@]}" --overlap off --bucket-mb 0.1 --output-dir off >/dev/null || fail 'overlap off'
same_losses ring off 'exchange after backward'
cmp -s ring/model.safetensors off/model.safetensors || fail 'overlap changes the weights'
# Two neighbours get 4 bits and a scale for 512 values each, in place of 1.5 times 32 bits for an all-reduce: 5.9 times less.
awk -v r="$(json ring.json ratio_wire)" 'BEGIN { exit !(r > 4.5 && r < 6) }' || fail "ratio_wire: $(json ring.json ratio_wire)"

# Learners learn, and the saved weights are those that were evaluated: the mean.
"$resnet" --image-size 16 --batch-size 16 --threads 1 --learners 4 --peers ring --innovation dyna --steps 150 --quiet --json \
  --output-dir learned >learned.json || fail 'dyna'
"$resnet" --image-size 16 --threads 1 --evaluate --init learned/model.safetensors --quiet --json >again.json || fail 'evaluate'
[ "$(json learned.json valid_acc1)" = "$(json again.json valid_acc1)" ] || fail "saved weights are not those evaluated: $(cat learned.json again.json)"
awk -v a="$(json learned.json valid_acc1)" 'BEGIN { exit !(a > 20) }' || fail "nothing was learned: $(json learned.json valid_acc1)"

awk -v e="$(json learned.json consensus_error)" 'BEGIN { exit !(e > 0 && e < 0.5) }' || fail "consensus_error: $(json learned.json consensus_error)"
grep -q '"split":"valid".*"consensus_error":' learned/metrics.jsonl || fail 'no consensus error in a validation line'
[ "$(json again.json consensus_error)" = '' ] || fail 'a consensus error without --peers'

# Learners with classes of their own: other batches than at random, and both optimizers take them.
for peers in --peers=ring ''; do
  "${images[@]}" --steps 12 --learners 4 --shard by-class ${peers:+"$peers"} --output-dir "classes$peers" >/dev/null || fail "by class $peers"
  "${images[@]}" --steps 12 --learners 4 ${peers:+"$peers"} --output-dir "random$peers" >/dev/null || fail "at random $peers"
  [ "$(losses "classes$peers")" != "$(losses "random$peers")" ] || fail "--shard by-class changes nothing $peers"
done

# A language model, with clipping, on the program's own sources.
"$lm" --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --threads 1 --learners 3 --peers ring --innovation dyna:bits=2 \
  --clip-grad-norm 1 --steps 60 --quiet --json --output-dir lm >lm.json || fail 'train_lm'
awk -v l="$(json lm.json train_loss)" 'BEGIN { exit !(l < 4.4) }' || fail "train_lm has learned nothing: $(json lm.json train_loss)"

# ------------------------------------------------------------------------------------- checkpoints
whole=("${images[@]}" --steps 12 --save-every 4 "${ring[@]/qsgd:bits=4/dyna}")
"${whole[@]}" --output-dir whole >whole.json || fail 'whole'
cp -r whole on && find on/checkpoints -mindepth 1 -maxdepth 1 ! -name step-8 -exec rm -r {} +
"${whole[@]}" --output-dir on --resume auto >on.json 2>on.err || fail "resume: $(tail -1 on.err)"
same_losses whole on 'resumed'
cmp -s whole/model.safetensors on/model.safetensors || fail 'a resumed run ends with other weights'
for r in 0 1 2 3; do
  cmp -s "whole/checkpoints/step-12/rank-$r.safetensors" "on/checkpoints/step-12/rank-$r.safetensors" || fail "rank $r has another state"
done
cp -r whole less && find less/checkpoints -mindepth 1 -maxdepth 1 ! -name step-8 -exec rm -r {} +
less=("${whole[@]}" --learners 2)
"${less[@]}" --output-dir less --resume auto >less.json 2>less.err || fail "with two learners: $(tail -1 less.err)"
[ "$(json less.json status)" = '"done"' ] || fail "with two learners: $(cat less.json)"

# A signal reaches all, some steps later where the graph is long.
long=("$resnet" --image-size 8 --batch-size 4 --threads 1 --print-freq 4 --deterministic --json --steps 400 --save-every 0
  --learners 6 --peers ring --output-dir long)
"${long[@]}" >long.json 2>long.err & pid=$!
wait_for long.err 'step [0-9]*/'
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] || fail "a signal: exit code $code: $(tail -3 long.err)"
"${long[@]}" --resume auto >long.json 2>long.err || fail "after a signal: $(tail -1 long.err)"

# ------------------------------------------------------------------------------------------- mpirun
if [ -n "$mpirun" ]; then
  ranks 4 "${images[@]}" --steps 12 --peers ring --innovation qsgd:bits=4 --output-dir mpi >/dev/null || fail 'mpirun'
  same_losses ring mpi 'processes'
  cmp -s ring/model.safetensors mpi/model.safetensors || fail 'processes end with other weights than threads'
else
  echo 'skipped: processes (no mpirun here)'
fi

# --------------------------------------------------------------------------------------- what is refused
refuse 'several learners' "${images[@]}" --steps 2 --peers ring
refuse 'several learners' "${images[@]}" --steps 2 --shard by-class
refuse '1.5' "${images[@]}" --steps 2 --learners 4 --peers ring --peer-mixing 1.5
refuse 'rings' "${images[@]}" --steps 2 --learners 4 --peers rings
refuse 'torus:2x3' "${images[@]}" --steps 2 --learners 4 --peers torus:2x3
printf '0: 1\n1: 0\n2: 3\n3: 2\n' >pairs
refuse 'cannot reach' "${images[@]}" --steps 2 --learners 4 --peers "$PWD/pairs"
refuse 'compress' "${images[@]}" --steps 2 --learners 4 --peers ring --compress topk
refuse 'innovation' "${images[@]}" --steps 2 --learners 4 --innovation dyna
refuse 'qsgd' "${images[@]}" --steps 2 --learners 4 --peers ring --innovation qsdg
finish
