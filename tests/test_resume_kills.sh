#!/usr/bin/env bash
# Kills lose nothing: a run of four learners that saves every few steps is killed again and again, after
# a file of a checkpoint, at a random moment, one process of four or all of them; it always resumes, and ends
# bit-identical to the run that was never killed. No incomplete checkpoint is ever chosen, and no process and no
# temporary file remains.
#   tests/test_resume_kills.sh build/train_resnet_hooked [mpirun]      KILLS=100 for the long form; SPEC=adacomp or lgc:…
set -u
program=$(realpath "$1") || exit 2
mpirun=${2:-}
kills=${KILLS:-4}
. "$(dirname "$0")/program.sh"
mine() { pgrep -f "^$work/rank "; }
at_exit() { kill -KILL $(mine) 2>/dev/null; }
cp "$program" "$work/rank" || exit 2  # a name of its own, so that surviving processes can be found
RANDOM=${SEED:-$$}
echo "seed ${SEED:-$$}"

flags=(--image-size 16 --batch-size 4 --threads 1 --print-freq 5 --deterministic --steps 61 --save-every 3 --comm-timeout 20
  --compress "${SPEC:-scalecom:rate=50}" --compress-start 2)
[[ ${SPEC:-} == lgc* ]] || flags+=(--layerwise lgreco --lgreco every=8,window=4)
threads=("$work/rank" "${flags[@]}" --learners 4)
processes=("$mpirun" -n 4 --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "$work/rank" "${flags[@]}")
files_of_a_save=9  # of four ranks: theirs, model, optimizer, state, manifest, and the folder renamed
"${threads[@]}" --output-dir whole --json >whole.json 2>whole.err || fail "whole: $(tail -1 whole.err)"

# Checks what must hold between two runs.
check_rest() {  # WHAT
  local i
  for i in {1..100}; do [ -z "$(mine)" ] && break; sleep 0.1; done
  [ -z "$(mine)" ] || { fail "$1: processes are left: $(mine | tr '\n' ' ')"; kill -KILL $(mine); }
  grep -q 'manifest\|model.safetensors\|rank-[0-3]' run.err && fail "$1: half a checkpoint was tried: $(grep 'step-' run.err)"
}
# The last step that the run has shown.
reached() { sed -n 's/.* step \([0-9]*\)\/.*/\1/p' run.err | tail -1; }

[ -n "$mpirun" ] || echo 'skipped: kills of ranks under mpirun (no mpirun here)'
survived=0 done=0
for ((round = 0; survived < kills && round < 20 * kills; round++)); do
  [ $done = 1 ] && { rm -rf run; done=0; }
  kind=$((round % 4))
  [ $kind -ge 2 ] && [ -z "$mpirun" ] && kind=$((kind - 2))
  case $kind in
    0) at=$((RANDOM % (3 * files_of_a_save) + 1))  # after a file, of the first three checkpoints
       what="killed after file $at"
       TEST_SAVE_KILL_AT=$at "${threads[@]}" --output-dir run --resume auto --json >run.json 2>run.err & pid=$! ;;
    1) what='killed at a random moment'
       TEST_SAVE_PAUSE_MS=40 "${threads[@]}" --output-dir run --resume auto --json >run.json 2>run.err & pid=$!
       sleep "$((RANDOM % 2)).$((RANDOM % 900 + 100))"; kill -KILL $pid 2>/dev/null ;;
    *) what="$([ $kind = 2 ] && echo one process || echo all processes) killed"
       TEST_SAVE_PAUSE_MS=40 "${processes[@]}" --output-dir run --resume auto --json >run.json 2>run.err & pid=$!
       sleep "$((RANDOM % 3 + 1)).$((RANDOM % 900 + 100))"
       mapfile -t pids < <(mine)
       if [ ${#pids[@]} != 0 ]; then
         [ $kind = 2 ] && kill -KILL "${pids[RANDOM % ${#pids[@]}]}" || kill -KILL "${pids[@]}"
       fi ;;
  esac
  wait $pid 2>/dev/null; code=$?
  check_rest "$what"
  if [ $code = 0 ]; then done=1; continue; fi  # it was faster
  [ $code -gt 128 ] || [ $kind -ge 2 ] || fail "$what: exit code $code: $(tail -1 run.err)"
  survived=$((survived + 1))
  echo "$what after step $(reached), $(ls run/checkpoints 2>/dev/null | tr '\n' ' ')"
done
[ $survived = "$kills" ] || fail "killed only $survived times"

"${threads[@]}" --output-dir run --resume auto --json >run.json 2>run.err || fail "the last one: $(tail -1 run.err)"
check_rest 'the last one'
cmp -s whole/model.safetensors run/model.safetensors || fail 'the weights differ'
same_losses whole run 'killed'
for file in whole/checkpoints/step-60/*.safetensors; do
  cmp -s "$file" "run/checkpoints/step-60/${file##*/}" || fail "${file##*/} differs"
done
[[ ${SPEC:-} == lgc* ]] || cmp -s whole/plan-52.json run/plan-52.json || fail "the plans differ: $(ls whole run)"
left=$(find run -name '*.part' -o -name '.*.tmp-*')
[ -z "$left" ] || fail "left behind: $left"
[ "$(ls run/checkpoints | sort | tr '\n' ' ')" = "$(ls whole/checkpoints | sort | tr '\n' ' ')" ] || fail "checkpoints: $(ls run/checkpoints)"

finish
