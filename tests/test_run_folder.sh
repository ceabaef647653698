#!/usr/bin/env bash
# Run folders with problems: unreadable files do not count as broken, foreign folders are left alone, and valid
# files are kept.
#   tests/test_run_folder.sh build/train_resnet build/train_lm
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
. "$(dirname "$0")/program.sh"

for i in {1..300}; do echo "line $((i % 7)): the cat saw the dog $((i * i % 13))"; done >a.txt
text=(--data a.txt --emsize 12 --nhid 12 --nlayers 1 --dropout 0 --bptt 8 --optimizer sgd --lr 1 --threads 1
  --batch-size 4 --deterministic --json)

# ------------------------------------------------------------- checkpoints that cannot be read
"$lm" "${text[@]}" --steps 11 --save-every 4 --keep 9 --output-dir locked >/dev/null 2>err || fail "$(tail -1 err)"
cp -r locked before
as_user=("$lm") again=()
if [ "$(id -u)" = 0 ]; then  # for whom no file is locked
  chmod 755 . && cp "$lm" program && chown -R 65534 locked
  as_user=(setpriv --reuid=65534 --clear-groups ./program)
fi
again=("${text[@]}" --steps 16 --save-every 4 --output-dir locked --resume auto)
chmod 000 locked/checkpoints/step-*/rank-0.safetensors
says 1 'step-8/rank-0.safetensors.*Permission denied' "${as_user[@]}" "${again[@]}"
chmod 644 locked/checkpoints/step-*/* && chmod 000 locked/checkpoints/step-8
says 1 'step-8/manifest.json.*Permission denied' "${as_user[@]}" "${again[@]}"
chmod 755 locked/checkpoints/step-8 && chmod 000 locked/checkpoints
says 1 'checkpoints.*Permission denied' "${as_user[@]}" "${again[@]}"
chmod 755 locked/checkpoints
diff -rq before locked || fail 'a run that could not read its checkpoints has changed its folder'
says 0 'locked/checkpoints/step-8' "${as_user[@]}" "${again[@]}"
# All are broken: nothing is begun anew, nothing is lost.
cp -r before broken && for step in 4 8; do echo x >>broken/checkpoints/step-$step/model.safetensors; done
cp -r broken before_broken
says 2 ' 2 .*step-8/model.*step-4/model.*broken/checkpoints' \
  "$lm" "${text[@]}" --steps 16 --output-dir broken --resume auto --quiet
says 2 'broken' "$lm" "${text[@]}" --steps 16 --output-dir new --resume broken
diff -rq broken before_broken || fail 'a run without a valid checkpoint has changed its folder'

# ------------------------------------------------------------------------------ folders of others
mkdir -p others/checkpoints
for file in config.toml model.safetensors .mail.tmp-box checkpoints/important.part; do echo mine >others/$file; done
cp -r others others_before
says 2 'others' "$lm" "${text[@]}" --steps 4 --output-dir others --resume auto
diff -rq others others_before || fail "a folder of others has been changed"
# Our checkpoints next to a foreign file with such a name; nothing is written through links.
cp -r before linked && echo mine >linked/checkpoints/important.part && : >precious && rm linked/{config.toml,metrics.jsonl}
ln -s "$PWD/precious" linked/config.toml && ln -s "$PWD/precious" linked/metrics.jsonl
says 2 'linked/metrics.jsonl.*link' "$lm" "${text[@]}" --steps 16 --output-dir linked --resume auto
rm linked/metrics.jsonl
says 0 'linked/checkpoints/step-8' "$lm" "${text[@]}" --steps 16 --output-dir linked --resume auto
[ ! -s precious ] || fail 'a link was written through'
[ -e linked/checkpoints/important.part ] || fail "a file of others was removed from checkpoints"

# ------------------------------------------------------------------------- a disk that is full
# Files that must not grow beyond 64 KiB: metrics, events and report are cut short, and the run ends well.
long=("${text[@]}" --epochs 3 --save-every 0)
"$lm" "${long[@]}" --output-dir roomy >roomy.json 2>err || fail "$(tail -1 err)"
(trap '' XFSZ; ulimit -f 64; exec "$lm" "${long[@]}" --output-dir cramped >cramped.json 2>err) ||
  fail "a disk that is full: exit code $?: $(tail -1 err)"
[ "$(json cramped.json test_loss)" = "$(json roomy.json test_loss)" ] || fail "a full disk: $(cat cramped.json)"
cmp -s roomy/model.safetensors cramped/model.safetensors || fail 'a full disk: the weights differ'
for file in metrics.jsonl events.out.tfevents; do
  [ "$(grep -c "^cramped/$file.*File too large" err)" = 1 ] || fail "$file: $(cat err)"
done
grep -q 'cramped/events.* cramped/metrics.jsonl' err || fail "the last lines do not say what is missing: $(tail -3 err)"
[ "$(wc -c <roomy/metrics.jsonl)" -gt 65536 ] || fail 'the test is too short: metrics fit'

# ------------------------------------------------------------------------------------ divergence
# Gradients that are not finite for many steps: what was good stays, and can be resumed with another rate.
cifar_file() {  # FILE RECORDS: any bytes do for pixels
  local i
  for ((i = 0; i < $2; i++)); do printf "\\x0$((i % 10))"; tail -c +$((i * 977 + 1)) "$resnet" | head -c 3072; done >"$1"
}
mkdir cifar && cifar_file twenty 20 2>/dev/null
for i in {1..50}; do cat twenty; done >cifar/data_batch_1.bin  # 1250 steps of 4 images: no epoch ends before a signal comes
for i in 2 3 4 5; do cp cifar/data_batch_{1,$i}.bin; done
cifar_file cifar/test_batch.bin 20 2>/dev/null
image=(--data cifar --image-size 8 --batch-size 2 --threads 1 --json --deterministic)
wild=("${image[@]}" --learners 2 --compress scalecom:rate=50 --compress-start 2 --save-every 4 --keep 2 --max-skipped 10
  --output-dir wild)
says 0 'report' "$resnet" "${wild[@]}" --steps 10 --lr 0.05
[ "$(echo wild/checkpoints/*)" = 'wild/checkpoints/step-4 wild/checkpoints/step-8' ] || fail "two good checkpoints: $(ls wild/checkpoints)"
cp -r wild/checkpoints good
says 3 ' 11 consecutive steps' "$resnet" "${wild[@]}" --steps 60 --lr 1e9 --resume auto
grep -q 'wild/checkpoints/step-8' err || fail "no mention of the good checkpoint: $(cat err)"
grep -q 'step 12 .*not saved' err || fail "no mention of a step that is not saved: $(cat err)"
diff -rq wild/checkpoints good || fail 'divergence has changed the checkpoints'
says 0 'wild/checkpoints/step-8' "$resnet" "${wild[@]}" --steps 14 --lr 0.01 --resume auto
[ "$(json out status)" = '"done"' ] && [ "$(json out step)" = 14 ] || fail "with a sane rate: $(cat out)"
# Stopped while gradients are refused: nothing to save, and the good checkpoint is named.
cp -r good wild/ && rm -rf wild/checkpoints && mv wild/good wild/checkpoints
"$resnet" "${wild[@]}" --steps 5000 --lr 1e9 --max-skipped 5000 --resume auto >out 2>err & pid=$!
for _ in {1..600}; do grep -q 'not saved' err && break; sleep 0.1; done
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] && grep -q -e '--resume auto.*wild/checkpoints/step-8' err ||
  fail "stopped while gradients are refused: exit code $code, $(tail -3 err)"
diff -rq wild/checkpoints good || fail 'a signal during divergence has changed the checkpoints'

# ----------------------------------------------------------------- only results that were computed
# No steps are left, and what was saved had not been validated: the result of a run that ended there.
says 0 '' "$resnet" "${image[@]}" --steps 4 --save-every 2 --keep 9 --output-dir four
[ -e four/checkpoints/step-4/state.json ] || fail 'a run that ends within an epoch is not saved at its last step'
says 0 '' "$resnet" "${image[@]}" --steps 2 --lr-scheduler step --lr-step-size 1 --output-dir two && cp out two.json
says 0 '' "$resnet" "${image[@]}" --steps 4 --lr-scheduler step --lr-step-size 1 --save-every 2 --keep 9 --output-dir more
says 0 '' "$resnet" "${image[@]}" --steps 2 --lr-scheduler step --lr-step-size 1 --resume more/checkpoints/step-2 --output-dir none
for key in status epoch step train_loss valid_loss valid_acc1 valid_acc5; do
  [ "$(json out $key)" = "$(json two.json $key)" ] || fail "no steps left, $key: $(json out $key), not $(json two.json $key)"
done
says 0 '' "$lm" "${text[@]}" --steps 4 --resume before/checkpoints/step-4 --output-dir lm_none
[[ $(json out valid_loss) == [1-9]* && $(json out test_ppl) == [1-9]* ]] || fail "no steps left: $(cat out)"
# A step so large that the validation loss is not finite: no weights are left.
says 3 'loss' "$resnet" "${image[@]}" --steps 1 --lr 1e9 --lr-scheduler step --lr-step-size 1 --output-dir far
[ "$(json out status)" = '"diverged"' ] && [ "$(json out valid_loss)" = null ] || fail "a loss that is no number: $(cat out)"
[ ! -e far/model.safetensors ] || fail 'weights of a run that has diverged'
# A run that is complete and has left no checkpoint: its result again, in full, with the weights that it left.
again() {  # PROGRAM ARGUMENT…: the same run twice, with the same result
  rm -rf complete && says 0 '' "$@" --save-every 0 --output-dir complete && cp out first.json
  says 0 'complete.* 4 steps' "$@" --save-every 0 --output-dir complete --resume auto
  grep -q '^done: ' err || fail "complete, and no result: $(cat err)"
  for key in status epoch step train_loss valid_loss valid_acc1 valid_acc5 valid_ppl valid_bpc test_loss test_ppl world_size \
    bytes_sent bytes_dense ratio_run generated predictions run_folder; do
    [ "$(json out $key)" = "$(json first.json $key)" ] || fail "complete, $key: $(json out $key), not $(json first.json $key)"
  done
  [ "$(json out status)" = '"done"' ] || fail "complete: $(cat out)"
}
again "$lm" "${text[@]}" --steps 4 --train --generate 20 --temperature 0 --learners 2
again "$resnet" "${image[@]}" --steps 4
says 2 'complete' "$resnet" "${image[@]}" --steps 5 --save-every 0 --output-dir complete --resume auto
# Killed before its weights were there: from the beginning.
rm complete/model.safetensors
says 0 'complete' "$resnet" "${image[@]}" --steps 4 --save-every 0 --output-dir complete --resume auto
# Nothing was evaluated.
base64 -d <<<"iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAALUlEQVR42u3NMQkAAAzEwFdS/1JeVjV0LBxkDFw6c+q4NwAAAAAAAAAAAOALsH2eED02ziBjAAAAAElFTkSuQmCC" >good.png
says 0 '' "$resnet" --init four --predict good.png --json
for key in train_loss valid_loss valid_acc1 valid_acc5; do
  [ "$(json out $key)" = null ] || fail "--predict says $key: $(json out $key)"
done

finish
