#!/usr/bin/env bash
# A run that was stopped continues as if it had not been: after a signal, from any of its checkpoints, in the
# middle of an epoch, with every kind of compression; with a different number of learners. Checkpoints that do
# not match are refused, invalid ones skipped, by name.
#   tests/test_resume.sh build/train_resnet_hooked build/train_lm [mpirun]
set -u
root=$(cd "$(dirname "$0")/.." && pwd) && resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$root/tests/program.sh"

three_ranks=("$mpirun" -n 3 --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1)
result() { grep -o '"\(status\|step\|train_loss\|[a-z]*_acc.\|[a-z]*_loss\)":[^,}]*' "$1"; }
# same A B: equal to the last bit in weights, losses, results, and in their newest checkpoints.
same() {
  local file newest
  cmp -s "$1/model.safetensors" "$2/model.safetensors" || fail "$3: the weights differ"
  same_losses "$1" "$2" "$3"
  [ "$(result "$1.json")" = "$(result "$2.json")" ] || fail "$3: $(result "$1.json") is not $(result "$2.json")"
  newest=$(ls "$1/checkpoints" 2>/dev/null | sort -t- -k2n | tail -1)
  [ -n "$newest" ] || return
  for file in "$1/checkpoints/$newest"/*.safetensors; do
    cmp -s "$file" "$2/checkpoints/$newest/${file##*/}" || fail "$3: $newest/${file##*/} differs"
  done
}
# keep_only FOLDER STEP: as if the run had been killed before the next checkpoint was in its place.
keep_only() {
  [ -d "$1/checkpoints/step-$2" ] || fail "$1: no checkpoint of step $2 among $(ls "$1/checkpoints" | tr '\n' ' ')"
  find "$1/checkpoints" -mindepth 1 -maxdepth 1 ! -name "step-$2" -exec rm -r {} +
}
# continues NAME STEP COMMAND…: a whole run, and one resumed from its checkpoint of that step.
continues() {
  local name=$1 step=$2; shift 2
  "$@" --output-dir "$name" >"$name.json" 2>"$name.err" || { fail "$name: $(tail -1 "$name.err")"; return; }
  cp -r "$name" "${name}_on" && keep_only "${name}_on" "$step"
  "$@" --output-dir "${name}_on" --resume auto >"${name}_on.json" 2>"$name.err" || fail "$name: $(tail -1 "$name.err")"
  same "$name" "${name}_on" "$name from step $step"
}

# ------------------------------------------------------------------------- from any checkpoint
image=("$resnet" --image-size 8 --batch-size 4 --threads 1 --print-freq 4 --deterministic --quiet --json --keep 99)
three=(--learners 3 --compress-start 2 --compress)
continues one 5 "${image[@]}" --steps 9 --save-every 5 --accumulate 2
continues dense 4 "${image[@]}" --steps 9 --save-every 2 --learners 3
continues scalecom 4 "${image[@]}" --steps 9 --save-every 4 "${three[@]}" scalecom:rate=50,beta=0.5 --overlap off
continues coded 2 "${image[@]}" --steps 9 --save-every 2 --learners 3 --compress-start 4 --start-compress qsgd --compress scalecom:rate=50
continues auto 4 "${image[@]}" --steps 9 --save-every 4 "${three[@]}" scalecom:rate=auto --bucket-mb 0.2
planned=(--layerwise lgreco --lgreco)
for step in 6 9 11 12; do  # in a window, between it and its plan, while that is being solved for, after it
  continues plan$step $step "${image[@]}" --steps 20 --save-every $((step % 2 ? step : 3)) "${three[@]}" scalecom:rate=50 "${planned[@]}" every=8,window=4
done

for i in {1..300}; do echo "line $((i % 7)): the cat saw the dog $((i * i % 13))"; done >a.txt
text=("$lm" --data a.txt --emsize 12 --nhid 12 --nlayers 2 --dropout 0.1 --bptt 8 --epochs 3 --optimizer sgd --lr 1
  --threads 1 --batch-size 4 --min-compress 100 --deterministic --quiet --json --keep 99)
continues text 30 "${text[@]}" --save-every 15
# Validation on text in another word order worsens from the first epoch on: the rate is reduced after the second and the third,
# and the weights that stay are those of the first, at the checkpoint that a run resumes from or long before it.
mkdir other && cp a.txt other/train.txt
for i in {1..30}; do echo "dog the saw $((i % 2)) cat line 3: the 1"; done | tee other/valid.txt >other/test.txt
for step in 42 126; do
  continues plateau$step $step "${text[@]}" --data other --learners 2 --save-every 1epoch --lr-scheduler plateau --lr 4 --epochs 4
done
grep -q '"step":126,.*"lr":1[.,]' plateau126/metrics.jsonl && grep -q '"step":127,.*"lr":0.25' plateau126/metrics.jsonl &&
  [ "$(json plateau126.json valid_loss)" = "$(grep '"step":42,.*valid' plateau126/metrics.jsonl |
    sed 's/.*"loss":\([^,]*\).*/\1/')" ] || fail "plateau: $(cat plateau126.json)"
continues powersgd 28 "${text[@]}" --save-every 7 "${three[@]}" powersgd:rank=2 "${planned[@]}" every=10,window=4,budget=accordion,errors=compensated
"${text[@]}" "${three[@]}" powersgd:rank=2 --resume powersgd/checkpoints/step-28 --output-dir replanned >replanned.out 2>&1 ||
  fail "factors of an old plan's ranks: $(tail -1 replanned.out)"

echo 'the dense start is that of the run, however many epochs it gets'
begun=("$resnet" --image-size 8 --batch-size 4 --threads 1 --learners 2 --compress scalecom:rate=50 --print-freq 1)
"${begun[@]}" --steps 2800 --output-dir begun >begun.out 2>&1 & pid=$!
wait_for begun/metrics.jsonl '"step":2,'; kill -TERM $pid; wait $pid
"${begun[@]}" --steps 8000 --resume begun --output-dir longer >longer.out 2>&1 & pid=$!
wait_for longer/metrics.jsonl '"split":"train"'; kill -TERM $pid; wait $pid
grep -q 'first 140 of 2800' begun.out && grep -q 'first 140 of 8000' longer.out || fail "dense starts: $(cat begun.out longer.out)"
"${begun[@]}" --steps 8000 --compress-start 150 --resume longer --output-dir told >told.out 2>&1 & pid=$!
wait_for told/metrics.jsonl '"split":"train"'; kill -TERM $pid; wait $pid
grep -q 'first 150 of 8000' told.out || fail "a dense start that was asked for: $(cat told.out)"
"${begun[@]/scalecom:rate=50/topk}" --steps 8000 --resume longer --resume-anyway --output-dir else >else.out 2>&1 & pid=$!
wait_for else/metrics.jsonl '"split":"train"'; kill -TERM $pid; wait $pid
grep -q 'first 400 of 8000' else.out || fail "the dense start of another compressor: $(cat else.out)"
continues qsgd 28 "${text[@]}" --save-every 14 "${three[@]}" qsgd:bits=4
continues adacomp 28 "${text[@]}" --save-every 7 "${three[@]}" adacomp:bin=50 "${planned[@]}" every=10,window=4,errors=compensated
lgc=lgc:density=0.05,train=20,gate=10,codec=paper,refresh=4
for step in 7 21 28; do continues lgc$step $step "${text[@]}" --save-every 7 "${three[@]}" $lgc; done  # stage 2, 3, retrained
continues topk 28 "${text[@]}" --save-every 14 "${three[@]}" topk:density=0.05 --optimizer adam --lr 0.01 --accumulate 2 --clip-grad-norm 1

# ------------------------------------------------------------------------------------- signals
# stops NAME SIGNAL PROCESS COMMAND…: a run that gets a signal while it trains ends with 75, and resumes to the
# result of the run without it. The signal goes to a process named PROCESS; if that is empty, to the one started here.
stops() {
  local name=$1 signal=$2 process=$3 code pid target; shift 3
  "$@" --output-dir "${name}_on" >"${name}_on.json" 2>"$name.err" & pid=$!
  wait_for "$name.err" 'step [0-9]*/'
  target=$pid
  [ -z "$process" ] || target=$(pgrep -f "^$process .*--output-dir ${name}_on" | tail -1)
  kill "-$signal" "$target"
  wait $pid; code=$?
  [ $code = 75 ] || fail "$name: exit code $code instead of 75: $(tail -3 "$name.err")"
  [ "$(json "${name}_on.json" status)" = '"stopped"' ] || fail "$name: $(cat "${name}_on.json")"
  [ -e "${name}_on/model.safetensors" ] && fail "$name: it had ended before the signal"
  "$@" --output-dir "${name}_on" --resume auto >"${name}_on.json" 2>>"$name.err" || fail "$name: $(tail -1 "$name.err")"
  same long "${name}_on" "$name"
}
long=("$resnet" --image-size 16 --batch-size 4 --threads 1 --print-freq 4 --deterministic --json --save-every 0 --steps 120
  --compress scalecom:rate=50 --compress-start 2)
"${long[@]}" --learners 3 --output-dir long >long.json 2>long.err || fail "long: $(tail -1 long.err)"
[ -e long/checkpoints ] && fail '--save-every 0 saves'
stops term TERM '' "${long[@]}" --learners 3
stops int INT '' "${long[@]}" --learners 3 --overlap off
"${long[@]}" --learners 3 --output-dir twice >twice.json 2>twice.err & pid=$!
wait_for twice.err 'step [0-9]*/'
kill -TERM $pid; kill -TERM $pid  # at once, as timeout(1) sends them
wait $pid; code=$?
[ $code = 75 ] || fail "two signals together: exit code $code instead of 75"
rm twice.err
TEST_SAVE_PAUSE_MS=3000 "${long[@]}" --learners 3 --output-dir twice --resume auto >twice.json 2>twice.err & pid=$!
wait_for twice.err 'step [0-9]*/'
kill -TERM $pid
for _ in {1..600}; do ls twice/checkpoints | grep -q part && break; sleep 0.1; done  # it saves
sleep 1; kill -TERM $pid  # no longer at once
wait $pid; code=$?
[ $code = 143 ] || fail "a second signal: exit code $code instead of 143"
ls twice/checkpoints | grep -q part || fail "the second signal came too late: $(ls twice/checkpoints)"
"${long[@]}" --learners 3 --output-dir twice --resume auto >twice.json 2>twice.err || fail "twice: $(tail -1 twice.err)"
same long twice 'a second signal'
[ "$(ls twice/checkpoints | wc -l)" = 1 ] || fail "left behind: $(ls twice/checkpoints)"
# Ranks wait for the first one as long as it takes to seal a checkpoint.
TEST_SAVE_PAUSE_MS=2500 "${long[@]}" --learners 2 --steps 4 --save-every 4 --comm-timeout 4 --output-dir slow >slow.json 2>slow.err ||
  fail "a slow disk: $(tail -1 slow.err)"
[ -e slow/checkpoints/step-4/manifest.json ] || fail "a slow disk: $(ls slow/checkpoints)"
# A run that begins while another is still saving must not resume from an earlier checkpoint.
TEST_SAVE_PAUSE_MS=600 "${long[@]}" --learners 3 --output-dir next >first.json 2>next.err & pid=$!
wait_for next.err 'step [0-9]*/'
kill -TERM $pid; sleep 0.3
"${long[@]}" --learners 3 --output-dir next --resume auto >next.json 2>second.err; code=$?
wait $pid
if [ $code = 1 ]; then  # refused while the first one holds the folder
  "${long[@]}" --learners 3 --output-dir next --resume auto >next.json 2>second.err || fail "next: $(tail -1 second.err)"
else
  [ $code = 0 ] && grep -q 'next/checkpoints/step-' second.err || fail "exit code $code while another run ends: $(tail -1 second.err)"
fi
same long next 'a run that began while another was ending'
if [ -n "$mpirun" ]; then
  stops forwarded USR1 '' "${three_ranks[@]}" "${long[@]}"
  stops one_rank TERM "$resnet" "${three_ranks[@]}" "${long[@]}"
  # A folder that only the first rank sees, as on hosts without a common one.
  mkdir -p here there
  "$mpirun" --allow-run-as-root --oversubscribe -n 1 -wdir "$PWD/here" "${image[@]}" --steps 3 --output-dir alone : \
    -n 1 -wdir "$PWD/there" "${image[@]}" --steps 3 --output-dir alone >stdout 2>stderr; code=$?
  [ $code = 2 ] && grep -q 'alone.*rank 1' stderr || fail "a folder of one rank: exit code $code, $(head -c 300 stderr)"
  [ -z "$(ls -A here/alone 2>/dev/null | grep seen)" ] || fail "left behind: $(ls -A here/alone)"
else
  echo 'skipped: ranks under mpirun (no mpirun here)'
fi

# ------------------------------------------------------------------ a different number of learners
# With three learners an epoch has 85 updates, with two 128: a third of an epoch is seen, two thirds remain.
continues_with() {  # LEARNERS STEP PATTERN COMMAND…
  local learners=$1 step=$2 pattern=$3; shift 3
  rm -rf other && cp -r "$base" other && keep_only other "$step"
  "$@" --learners "$learners" --output-dir other --resume auto >other.json 2>other.err ||
    fail "$learners learners: $(tail -1 other.err)"
  grep -q ' 3 learners' other.err || fail "nothing said of learners: $(cat other.err)"
  grep -q -e "$pattern" other.json || fail "$learners learners: '$pattern' is not in $(cat other.json)"
}
loud() { local out=() word; for word in "$@"; do [ "$word" = --quiet ] || out+=("$word"); done; printf '%s\n' "${out[@]}"; }
mapfile -t loud_text < <(loud "${text[@]}")
base=three_text
"${loud_text[@]}" --learners 3 --save-every 14 "${three[@]:2}" topk:density=0.05 --output-dir $base >/dev/null 2>base.err || fail "$(tail -1 base.err)"
steps=$(json qsgd.json step)
continues_with 2 28 '"epoch":3' "${loud_text[@]}" --save-every 14 "${three[@]:2}" topk:density=0.05
[ "$(json other.json step)" -gt "$steps" ] || fail "fewer learners need more updates: $(cat other.json)"
[ "$(losses other | wc -l)" -gt "$(losses $base | wc -l)" ] || fail 'fewer learners: expected more steps in the metrics'
continues_with 5 28 '"epoch":3' "${loud_text[@]}" --save-every 14 "${three[@]:2}" topk:density=0.05
[ "$(json other.json step)" -lt "$steps" ] || fail "more learners need fewer updates: $(cat other.json)"
"${loud_text[@]}" --learners 5 --save-every 14 "${three[@]:2}" topk:density=0.05 --output-dir other --resume auto --epochs 4 \
  >again.json 2>other.err || fail "again: $(tail -1 other.err)"
grep -q 'epochs.* 3.* 4' other.err || fail "nothing said of epochs: $(cat other.err)"
[ "$(json again.json step)" -gt "$(json other.json step)" ] || fail "one more epoch: $(cat again.json)"
base=lgc28
continues_with 2 28 '"epoch":3' "${loud_text[@]}" --save-every 7 "${three[@]:2}" $lgc
grep -q '"step":29,.*"stage":3' other/metrics.jsonl || fail "LGC begins anew: $(grep '"step":29,' other/metrics.jsonl)"

# ------------------------------------------------------------------------------- what is refused
at=scalecom/checkpoints/step-8
again=("${image[@]}" --steps 9 "${three[@]}" scalecom:rate=50,beta=0.5 --overlap off)
refuse 'arch.*resnet20.*resnet32' "${again[@]}" --resume $at --arch resnet32
refuse 'compress.*scalecom:rate=50,beta=0.5.*none' "${image[@]}" --steps 9 --learners 3 --resume $at
refuse 'optimizer.*sgd.*adam' "${again[@]}" --resume $at --optimizer adam
refuse 'train_resnet.*train_lm' "${text[@]}" --resume $at
refuse 'nowhere' "${again[@]}" --resume nowhere
mkdir -p hollow && refuse 'hollow' "${again[@]}" --resume hollow
says 2 '--output-dir' "${again[@]}" --resume auto
refuse '--save-every.*often' "${again[@]}" --save-every often
"${image[@]}" --steps 3 --save-every 0 --output-dir ended >/dev/null 2>&1 && cp ended/metrics.jsonl ended.jsonl || fail 'a run without checkpoints'
says 2 'ended' "${image[@]}" --steps 4 --resume auto --output-dir ended
cmp -s ended/metrics.jsonl ended.jsonl || fail 'the metrics of a run that has ended are gone'
# A run that is refused leaves the other one's folder as it is.
"${image[@]}" --steps 9 --save-every 3 --keep 9 --output-dir other_run >/dev/null 2>&1 && cp -r other_run untouched || fail 'a run to be left alone'
says 2 'other_run.*arch' "${image[@]}" --steps 9 --save-every 3 --keep 1 --arch resnet32 --resume auto --output-dir other_run
diff -r other_run untouched || fail "a run that was refused has changed another's folder"
refuse '--evaluate.* --init' "${again[@]}" --resume auto --evaluate
sed 's/dog/pig/' a.txt >b.txt
refuse 'vocabulary\|data.*a.txt' "${text[@]/a.txt/b.txt}" --resume text
"${image[@]}" --steps 9 --learners 3 --resume $at --resume-anyway --output-dir anyway >anyway.json 2>stderr ||
  fail "--resume-anyway: $(cat stderr)"
[ "$(json anyway.json step)" = 9 ] || fail "--resume-anyway: $(cat anyway.json)"

# ------------------------------------------------------------------------- invalid checkpoints
# passed_over PATTERN: what is wrong with the newest checkpoint of `broken` is named, and the one before is used.
loud_again=(); mapfile -t loud_again < <(loud "${again[@]}")
passed_over() {
  "${loud_again[@]}" --save-every 4 --output-dir broken --resume auto >broken.json 2>stderr || fail "$1: $(tail -1 stderr)"
  grep -q "step-8.*$1" stderr || fail "'$1' is not in: $(head -3 stderr)"
  grep -q 'broken/checkpoints/step-4' stderr || fail "$1: $(head -3 stderr)"
  same scalecom broken "skipped: $1"
}
spoil() { rm -rf broken && cp -r scalecom broken; }
flip() {  # a bit of the byte in the middle
  local at=$(($(stat -c %s "$1") / 2))
  local byte; byte=$(od -An -tu1 -j$at -N1 "$1")
  printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek=$at conv=notrunc 2>/dev/null
}
for file in model.safetensors optimizer.safetensors rank-0.safetensors rank-2.safetensors state.json; do
  spoil && flip broken/checkpoints/step-8/$file && passed_over "$file"
done
spoil && flip broken/checkpoints/step-8/manifest.json && passed_over ""
spoil && rm broken/checkpoints/step-8/manifest.json && passed_over 'manifest.json'
spoil && cp auto/checkpoints/step-8/rank-1.safetensors broken/checkpoints/step-8/ && passed_over 'rank-1.safetensors'
spoil && sed -i 's/"version": 1/"version": 2/' broken/checkpoints/step-8/manifest.json && passed_over 'version 2'
ls broken/checkpoints | grep -q 'step-8$' || fail "not saved again: $(ls broken/checkpoints)"
spoil && rm broken/checkpoints/step-8/rank-1.safetensors && refuse 'rank-1' "${again[@]}" --resume broken/checkpoints/step-8

# -------------------------------------------------------------------------- with other flags
# What restoring refuses changes nothing in the folder; flags that it does not refuse have an effect.
files_of() { (cd "$1" && find . -type f -exec md5sum {} + | sort -k2); }
lm_run=("${text[@]}" --optimizer sgd --lr-scheduler plateau --lr 4)
"${lm_run[@]}" --save-every 1epoch --output-dir flags >flags.json 2>stderr || fail "flags: $(tail -1 stderr)"
early=$(ls flags/checkpoints | sort -t- -k2n | head -1)
files_of flags >before
says 2 'momentum_buffer.*--resume-anyway' "${lm_run[@]}" --momentum 0.9 --output-dir flags --resume "flags/checkpoints/$early"
files_of flags | cmp -s before - || fail "a refused checkpoint: $(files_of flags | diff before - | head -3)"
for changed in '--batch-size 8' '--lr-scheduler constant' '--resume-anyway --nlayers 1' '--resume-anyway --nhid 16 --learners 2'; do
  rm -rf changed && cp -r flags changed
  "${lm_run[@]}" $changed --output-dir changed --resume "changed/checkpoints/$early/" >out.json 2>stderr || fail "$changed: $(tail -1 stderr)"
done
# Another network's best loss is no measure for this one, nor are weights made at its start its best.
rm -rf changed && cp -r flags changed
"${lm_run[@]}" --resume-anyway --nlayers 1 --lr 1e-6 --output-dir changed --resume "changed/checkpoints/$early" >out.json 2>stderr || fail "nlayers: $(tail -1 stderr)"
grep '"split":"valid"' changed/metrics.jsonl | tail -n +2 | grep -q "\"loss\":$(json out.json valid_loss)," || fail "nlayers: $(cat out.json)"
[ "$(grep -o '"lr":[^,]*' changed/metrics.jsonl | tail -1)" = '"lr":1e-06' ] || fail "nlayers: the rate fell"
"$lm" --init changed --evaluate --json "${text[@]:1:2}" >again.json 2>stderr || fail "nlayers: $(tail -1 stderr)"
[ "$(json again.json valid_loss)" = "$(json out.json valid_loss)" ] || fail "nlayers: saved $(cat again.json), found $(cat out.json)"
rm -rf changed && cp -r flags changed  # constant, then plateau again: there are no best weights to restore
for changed in constant plateau; do
  "${lm_run[@]}" --epochs 5 --lr-scheduler $changed --output-dir changed --resume auto >out.json 2>stderr || fail "$changed: $(tail -1 stderr)"
done
"${lm_run[@]}" --epochs 4 --lr 1 --output-dir flags --resume "flags/checkpoints/$early" >out.json 2>stderr || fail "--lr 1: $(tail -1 stderr)"
grep -q '"lr":[^,]*' flags/metrics.jsonl && [ "$(grep -o '"lr":[^,]*' flags/metrics.jsonl | tail -1)" = '"lr":1.0' ] ||
  fail "--lr 1 with plateau: $(grep -o '"lr":[^,]*' flags/metrics.jsonl | tail -1)"
# A trace of steps that this process runs, and none of others.
for range in 1:3 $((${early#step-} - 1)):$((${early#step-} + 2)); do
  rm -rf changed && cp -r flags changed
  "${lm_run[@]}" --epochs 4 --output-dir changed --resume "changed/checkpoints/$early" --trace t.json --trace-steps $range >out.json 2>stderr ||
    fail "--trace-steps $range: $(tail -1 stderr)"
  [ "$range" = 1:3 ] && most=200 least=0 || most=100000 least=1000
  [ "$(wc -c <t.json)" -ge $least ] && [ "$(wc -c <t.json)" -le $most ] || fail "--trace-steps $range: $(wc -c <t.json) bytes"
done
rm -rf changed && cp -r flags changed  # steps that an earlier process traced stay
"${lm_run[@]}" --epochs 4 --output-dir changed --resume "changed/checkpoints/$early" --trace t.json --trace-steps 1:3 >out.json 2>stderr &&
  [ "$(wc -c <t.json)" -ge 1000 ] || fail "a trace of earlier steps: $(wc -c <t.json) bytes, $(tail -1 stderr)"
# Ratios count each step with the learners that it had.
few=("$resnet" --image-size 8 --batch-size 4 --threads 1 --quiet --json --compress qsgd:bits=4 --compress-start 0)
"${few[@]}" --steps 4 --learners 3 --output-dir straight >straight.json && "${few[@]}" --steps 4 --save-every 4 --output-dir more >out.json &&
  "${few[@]}" --steps 9 --learners 3 --output-dir more --resume auto >more.json || fail "more learners: exit code $?"
[ "$(json more.json ratio_wire)" = "$(json straight.json ratio_wire)" ] || fail "more learners: $(cat more.json)"
# A run's configuration, learners included, evaluates its weights.
"${text[@]}" --epochs 1 --learners 2 --net 1gbit,1ms --output-dir pair >pair.json 2>stderr || fail "pair: $(tail -1 stderr)"
"$lm" --config pair/config.toml --init pair --evaluate >out.json 2>stderr || fail "--config of two learners: $(tail -1 stderr)"

# ------------------------------------------------------------------------ versions of the format
# A checkpoint of each is kept: format <n> was written by the command in its file `command`, and the run that is
# resumed from it ends as it did then.
for kept in "$root"/tests/golden/checkpoint-v*; do
  name=${kept##*/}
  cp -r "$kept" . && rm -f "$name/result.json" && (cd "$name" && mapfile -t words <command &&
    "$lm" "${words[@]}" --output-dir . --resume auto >../$name.json 2>../$name.err) || fail "$name: $(tail -1 $name.err)"
  grep -q ' ./checkpoints/step-' $name.err || fail "$name: $(head -3 $name.err)"
  [ "$(json $name.json step)" = "$(json "$kept/result.json" step)" ] || fail "$name: $(cat $name.json)"
  awk -v a="$(json $name.json test_loss)" -v b="$(json "$kept/result.json" test_loss)" \
    'BEGIN { exit !(b > 0 && (a / b - 1) ^ 2 < 1e-8) }' || fail "$name: $(json $name.json test_loss)"
done

# -------------------------------------------------------------------------------------- the disk
mkdir disk
if mount -t tmpfs -o size=4m tmpfs disk 2>/dev/null; then
  small=(--image-size 8 --batch-size 4 --threads 1 --learners 2)
  "$resnet" "${small[@]}" --steps 9 --save-every 4 --output-dir disk/run 2>stderr || fail "a save that fails: $(tail -1 stderr)"
  grep -q 'No space left' stderr || fail "no mention of a full disk: $(cat stderr)"
  [ "$(ls disk/run/checkpoints)" = step-4 ] || fail "left on the full disk: $(ls disk/run/checkpoints)"
  rm -rf disk/run
  "$resnet" "${small[@]}" --steps 20 --save-every 3 --output-dir disk/run --quiet 2>stderr
  [ $? = 1 ] && grep -q ' 3 .*No space left' stderr || fail "saves that fail: $(cat stderr)"
  mount -o remount,ro disk
  "$resnet" "${small[@]}" --steps 20 --output-dir disk/run --resume auto --quiet 2>stderr
  [ $? = 1 ] && [ "$(wc -l <stderr)" = 1 ] && grep -q 'Read-only' stderr || fail "a read-only folder: $(cat stderr)"
else
  echo 'skipped: a full disk (only root can mount a small one)'
fi

finish
