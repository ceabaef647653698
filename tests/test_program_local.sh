#!/usr/bin/env bash
# Local steps, as a user would start them: threads and mpirun with the same bits, compressed or not; resumed within a
# round, by as many learners and by others; a signal ends a run at the end of a round; what contradicts itself is refused.
#   tests/test_program_local.sh build/train_resnet build/train_lm [mpirun]
set -u
sources=$(cd "$(dirname "$0")/.." && pwd)
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$sources/tests/program.sh"

images=("$resnet" --image-size 8 --batch-size 4 --threads 1 --print-freq 4 --deterministic --quiet --json --keep 99)
diloco=(--local-steps 5 --outer-lr 0.7 --outer-momentum 0.9)
rounds=(--learners 4 "${diloco[@]}")
near() { awk -v x="$2" -v low="$3" -v high="$4" 'BEGIN { exit !(x > low && x < high) }' || fail "$1: $2, expected $3 to $4"; }

for code in none topk:density=0.05 scalecom:rate=50; do
  run=("${images[@]}" "${rounds[@]}" --compress "$code" --steps 23)
  [ $code = none ] || run+=(--compress-start 5)
  "${run[@]}" --save-every 8 --output-dir "whole-$code" >"whole-$code.json" || fail "$code"
  "${run[@]}" --overlap off --output-dir "off-$code" >/dev/null || fail "$code: overlap off"
  cmp -s "whole-$code/model.safetensors" "off-$code/model.safetensors" || fail "$code: overlap changes the weights"
  # Step 16 is the first of a round.
  "${run[@]}" --resume "whole-$code/checkpoints/step-16" --output-dir "again-$code" >"again-$code.json" || fail "$code: resume"
  cmp -s "whole-$code/model.safetensors" "again-$code/model.safetensors" || fail "$code: a resumed run ends with other weights"
  for figure in ratio_run ratio_wire ratio_layers bytes_dense; do
    [ "$(json "whole-$code.json" $figure)" = "$(json "again-$code.json" $figure)" ] || fail "$code: a resumed run has another $figure"
  done
done
# A round's ratio is in the line of its exchange only; the losses that are summed within a round have none.
for line in 4:0 5:1 9:0 10:1 20:1 21:0 23:1; do
  found=$(grep "^{\"step\":${line%:*},.*\"split\":\"train\"" whole-none/metrics.jsonl | grep -c '"ratio":')
  [ "$found" = "${line#*:}" ] || fail "step ${line%:*} has $found ratios"
done
near 'the ratio of a round of five steps' "$(sed -n 's/^{"step":10,.*"ratio":\([0-9.]*\).*/\1/p' whole-none/metrics.jsonl)" 4 5.1
near 'local steps alone' "$(json whole-none.json ratio_run)" 4 5
[ "$(json whole-none.json ratio_layers)" = 1.0 ] || fail "a ratio without compression: $(json whole-none.json ratio_layers)"
near 'top-k alone, as papers count' "$(json whole-topk:density=0.05.json ratio_layers)" 19 21
near 'top-k and local steps' "$(json whole-topk:density=0.05.json ratio_wire)" 20 100
"${images[@]}" --learners 4 --steps 23 --save-every 20 --output-dir plain >plain.json || fail 'an exchange in each step'
[ "$(json plain.json ratio_run)" = 1.0 ] || fail "ratio_run without local steps: $(json plain.json ratio_run)"
"${images[@]}" --learners 4 --steps 23 --local-steps 1 --output-dir one >/dev/null || fail '--local-steps 1'
cmp -s plain/model.safetensors one/model.safetensors || fail '--local-steps 1 is not an exchange in each step'
for flags in '--outer-lr 1' '--outer-momentum 0' '--local-steps 6'; do
  # shellcheck disable=SC2086
  "${images[@]}" "${rounds[@]}" --steps 23 $flags --output-dir "other$flags" >/dev/null || fail "$flags"
  cmp -s whole-none/model.safetensors "other$flags/model.safetensors" && fail "$flags changes nothing"
done
# What a residual delays has the outer momentum, unless chosen otherwise.
"${images[@]}" "${rounds[@]}" --steps 23 --compress topk:density=0.05 --compress-start 5 --compressed-momentum full --output-dir full >/dev/null || fail 'full'
cmp -s full/model.safetensors whole-topk:density=0.05/model.safetensors || fail 'with local steps --compressed-momentum is not full by default'
# A ramp is in steps, too: of a fifth as many rounds.
"${images[@]}" "${rounds[@]}" --steps 40 --compress topk:density=0.05,ramp=10 --compress-start 5 --output-dir ramp >ramp.json || fail 'ramp'
near 'a ramp of two of seven rounds' "$(json ramp.json ratio_layers)" 9 16
# With a delay, the exchange runs on while others are computed: the same bits as when the learners wait for it, with and
# without the checkpoints that wait, too, and from those that were made before the exchange of step 15 moved the weights, and before the last step.
for code in none scalecom:rate=50; do
  delayed=("${images[@]}" "${rounds[@]}" --outer-delay 3 --steps 23 --compress $code)
  [ $code = none ] || delayed+=(--compress-start 5)
  "${delayed[@]}" --save-every 2 --output-dir "delay-$code" >"delay-$code.json" || fail "delay, $code"
  for flags in '--overlap off --explain-step 20' '--save-every 0' '--explain-step 21' "--resume delay-$code/checkpoints/step-16" \
    "--resume delay-$code/checkpoints/step-22"; do
    # shellcheck disable=SC2086
    "${delayed[@]}" $flags --output-dir "delay$flags-$code" >"other-$code.json" 2>err || fail "delay, $code: $flags"
    cmp -s "delay-$code/model.safetensors" "delay$flags-$code/model.safetensors" || fail "delay, $code: $flags changes the weights"
    for figure in ratio_run ratio_wire bytes_dense; do
      [ "$(json "delay-$code.json" $figure)" = "$(json "other-$code.json" $figure)" ] || fail "delay, $code: $flags: another $figure"
    done
  done
done
cmp -s whole-none/model.safetensors delay-none/model.safetensors && fail '--outer-delay changes nothing'
[ "$(sed -n 's/^{"step":\([0-9]*\),.*"ratio":.*/\1/p' 'delay--save-every 0-none/metrics.jsonl' | tr '\n' ' ')" = '8 13 18 22 23 ' ] ||
  fail "delayed exchanges: $(grep '"ratio":' 'delay--save-every 0-none/metrics.jsonl')"
"${delayed[@]}" --resume whole-scalecom:rate=50 --resume-anyway --steps 30 --output-dir later >/dev/null 2>later.err || fail "delayed, after others: $(tail -1 later.err)"
# A run that is not longer than a round exchanges once, in its last step.
"${images[@]}" --learners 4 --local-steps 1000 --steps 7 --output-dir short >short.json || fail 'a short run'
near 'one exchange in seven steps' "$(json short.json ratio_run)" 6.5 7.1
# Other learners, and other rounds, begin from the anchor; others keep the outer momentum and the mean residual.
"${images[@]}" --learners 2 "${diloco[@]}" --steps 26 --resume whole-none --output-dir fewer >/dev/null 2>fewer.err || fail "other learners: $(tail -1 fewer.err)"
"${images[@]}" --learners 4 --local-steps 3 --steps 26 --resume whole-none --resume-anyway --output-dir rounds >/dev/null 2>rounds.err || fail "other rounds: $(tail -1 rounds.err)"
"${images[@]}" --learners 4 --steps 26 --resume whole-none --resume-anyway --output-dir each >/dev/null 2>each.err || fail "an exchange in each step: $(tail -1 each.err)"
"${images[@]}" "${rounds[@]}" --steps 26 --resume plain --resume-anyway --output-dir begun >/dev/null 2>begun.err || fail "local steps after others: $(tail -1 begun.err)"
"$lm" --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --threads 1 --learners 3 --tied --optimizer adam --lr 0.01 --clip-grad-norm 1 \
  --accumulate 2 --local-steps 4 --steps 10 --quiet --json --output-dir text >text.json 2>text.err || fail "a language model: $(tail -1 text.err)"
# With other learners the outer momentum continues: it moves the weights even where steps change nothing.
momentum=("$lm" --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --threads 1 --optimizer sgd --lr-scheduler constant --local-steps 4
  --outer-lr 0.7 --outer-momentum 0.9 --quiet --json)
"${momentum[@]}" --learners 3 --lr 1 --steps 8 --save-every 8 --output-dir three >three.json 2>three.err || fail "outer momentum: $(tail -1 three.err)"
"${momentum[@]}" --learners 2 --lr 1e-20 --steps 12 --resume three --output-dir two >two.json 2>two.err || fail "outer momentum: $(tail -1 two.err)"
[ "$(json three.json valid_loss)" = "$(json two.json valid_loss)" ] && fail 'other learners lose the outer momentum'
"${images[@]}" --learners 4 --local-steps 5 --compress topk --dry-run >dry.json || fail 'dry run'
"${images[@]}" --learners 4 --compress topk --dry-run >dense.json || fail 'dry run'
near 'bytes a step' "$(awk -v a="$(json dense.json exchange_bytes_per_step)" -v b="$(json dry.json exchange_bytes_per_step)" 'BEGIN { print a / b }')" 4.9 5.1
[[ "$("${images[@]/--json/--quiet}" --learners 4 --local-steps 5 --dry-run)" = *'P times that every 5 steps'* ]] || fail 'a dry run says when learners exchange'

# Headroom computes what local steps make of the fastest exchange, and measures no code twice.
"${images[@]/--deterministic/--tune}" --learners 2 --net 20mbit,1ms --headroom 0.001 --compress auto >auto.json || fail 'headroom of auto'
[ "$(grep -o '"exchange":"[^"]*","steps"' auto.json | sort | uniq -c | awk '{ print $1 }' | tr -d '\n')" = 111111 ] ||
  fail "headroom of auto measures a code twice: $(cat auto.json)"
[ "$(grep -o '"exchange":"[^"]*","steps":1,' auto.json | wc -l)" = 6 ] || fail "headroom continues although its time is over: $(cat auto.json)"
# Times depend on the machine; what is computed follows from what was measured.
grep -o '"steps":1,"step_s":[^,]*' auto.json | sed 's/.*://' | awk -v step="$(json auto.json local_step_s)" '
  NR == 1 { alone = $1; next } best == "" || $1 < best { best = $1 }
  END { off = step / (alone + (best > alone ? best - alone : 0) / 8) - 1; exit !(off < 1e-6 && off > -1e-6) }' ||
  fail "a computed step with local steps: $(cat auto.json)"
# A run of epochs that other learners continue ends a round with its last step, wherever that is.
epochs=("${images[@]/--deterministic/--tune}" --batch-size 64 --epochs 2 --local-steps 50 --save-every 100)
"${epochs[@]}" --learners 3 --output-dir epochs >/dev/null || fail 'epochs'
"${epochs[@]}" --learners 2 --resume epochs/checkpoints/step-100 --output-dir epochs-fewer >epochs.json 2>epochs.err || fail "epochs: $(tail -1 epochs.err)"
last=$(grep '"split":"train"' epochs-fewer/metrics.jsonl | tail -1 | sed 's/.*"bytes_sent":\([0-9]*\).*/\1/')
[ "${last:-0}" -gt 500000 ] || fail "the last step, $(json epochs.json step), exchanged nothing: $last bytes"

"${images[@]}" --learners 4 --local-steps 5 --steps 1000000 --output-dir stopped >stopped.json 2>stopped.err & pid=$!
wait_for stopped/metrics.jsonl '"step":4,'
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] || fail "a signal: exit code $code: $(tail -3 stopped.err)"
[ $(($(json stopped.json step) % 5)) = 0 ] || fail "stopped within a round, after step $(json stopped.json step)"

"${images[@]}" --learners 4 --local-steps 100000 --steps 1000000 --save-every 60 --output-dir long >long.json 2>long.err & pid=$!
wait_for long/metrics.jsonl '"step":120,'
[ -e long/checkpoints/step-60 ] || fail "a checkpoint waits for the end of a round: $(ls long/checkpoints)"
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] || fail "a signal in a long round: exit code $code: $(tail -3 long.err)"

# What a file or the environment says for other runs.
HEDDLE_LOCAL_STEPS=4 "${images[@]}" --learners 4 --steps 4 --peers ring --output-dir env-ring >/dev/null 2>env.err || fail "$(cat env.err)"
grep -q 'local_steps = 1\|local-steps = 1' env-ring/config.toml || fail "local steps with peers: $(grep local env-ring/config.toml)"
HEDDLE_LOCAL_STEPS=4 HEDDLE_OUTER_DELAY=2 "${images[@]}" --steps 4 --output-dir env-one >/dev/null 2>env.err || fail "$(cat env.err)"
grep -q 'local_steps = 1\|local-steps = 1' env-one/config.toml || fail "local steps of one learner: $(grep local env-one/config.toml)"

if [ -n "$mpirun" ]; then
  ranks 4 "${images[@]}" --steps 23 "${diloco[@]}" --compress scalecom:rate=50 --compress-start 5 --output-dir mpi >/dev/null || fail 'mpirun'
  ranks 4 "${images[@]}" --steps 23 "${diloco[@]}" --outer-delay 3 --compress scalecom:rate=50 --compress-start 5 --output-dir mpi-delay >/dev/null || fail 'mpirun, delay'
  cmp -s delay-scalecom:rate=50/model.safetensors mpi-delay/model.safetensors || fail 'delay: processes end with other weights than threads'
  cmp -s whole-scalecom:rate=50/model.safetensors mpi/model.safetensors || fail 'processes end with other weights than threads'
else
  echo 'skipped: processes (no mpirun here)'
fi

refuse 'several learners' "${images[@]}" --steps 2 --local-steps 5
refuse 'outer-lr' "${images[@]}" --steps 2 --learners 4 --outer-lr 0.7
refuse 'outer-momentum' "${images[@]}" --steps 2 --learners 4 --local-steps 5 --outer-momentum 1
refuse 'outer-delay' "${images[@]}" --steps 2 --learners 4 --outer-delay 1
refuse 'outer-delay.*fewer steps than the 5 of a round' "${images[@]}" --steps 2 --learners 4 --local-steps 5 --outer-delay 5
refuse 'local-steps' "${images[@]}" --steps 2 --learners 4 --local-steps 0
refuse 'peers' "${images[@]}" --steps 2 --learners 4 --local-steps 5 --peers ring
refuse 'clip-mode' "${images[@]}" --steps 2 --learners 4 --local-steps 5 --clip-mode local --clip-grad-norm 1
for flags in '--compress topagg:sigma=2' '--hosts 2' '--compress topk --layerwise lgreco' '--compress topk --shadow 5'; do
  # shellcheck disable=SC2086
  refuse 'local-steps\|deterministic' "${images[@]}" --steps 2 --learners 4 --local-steps 5 $flags
done
refuse 'local-steps' "${images[@]}" --learners 4 --local-steps 5 --headroom 1
refuse 'plateau' "$lm" --emsize 12 --nhid 12 --nlayers 1 --bptt 32 --batch-size 32 --threads 1 --learners 3 --lr-scheduler plateau --epochs 2 --local-steps 2500
refuse 'local-steps\|compress' "${images[@]}" --local-steps 3 --learners 4 --steps 30 --output-dir whole-none --resume whole-none
finish
