#!/usr/bin/env bash
# Signals never run a handler on a thread that computes, save and end a run however many come, and the run
# resumes to the same weights. Also how a process begins: closed standard streams, ranks that never start.
#   tests/test_signals.sh build/train_resnet build/train_lm [mpirun]      RUNS=10 for the long form
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$(dirname "$0")/program.sh"
at_exit() { pkill -KILL -f "$work/"; }
two_ranks=("$mpirun" -n 2 --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1)

all=$((1 << 0 | 1 << 1 | 1 << 9 | 1 << 14))  # SIGHUP, SIGINT, SIGUSR1, SIGTERM
# mask_of FILE KEY: those of the four signals that are in a mask of /proc/PID/status.
mask_of() { echo $((0x$(sed -n "s/^$2:[[:space:]]*//p" "$1") & all)); }
# check_masks PID NAME: no handler for any of the four, and all threads but the one that takes them block them.
# A handler's frame would be written where oneDNN's matrix products keep their data.
check_masks() {
  local task open=0
  for task in /proc/"$1"/task/*/status; do
    [ "$(mask_of "$task" SigCgt)" = 0 ] || fail "$2: a signal has a handler: $(grep Sig "$task")"
    [ "$(mask_of "$task" SigBlk)" = $all ] || open=$((open + 1))
  done
  [ $open = 1 ] || fail "$2: $open threads do not block the signals, expected 1"
}

# twelve NAME PROGRAM COMMAND…: twelve signals to each process of the program while it trains; saved, exit
# code 75, resumed to the weights of the folder NAME.
twelve() {
  local name=$1 program=$2 pid code ranks rank begin flags kinds=(USR1 INT TERM HUP) i; shift 2
  rm -rf on on.err
  "$@" --output-dir "$work/on" >on.out 2>on.err & pid=$!
  wait_for on.err 'step [0-9]*/'
  mapfile -t ranks < <(pgrep -f "^$program .*$work/on")
  for rank in "${ranks[@]}"; do check_masks "$rank" "$name"; done
  begin=${EPOCHREALTIME/./}
  for i in {0..11}; do
    kill "-${kinds[i % 4]}" "${ranks[@]}" 2>/dev/null
    sleep 0.01
    [ $((${EPOCHREALTIME/./} - begin)) -lt 400000 ] || break  # half a second later it would end at once
  done
  wait $pid; code=$?
  [ $code = 75 ] || fail "$name: exit code $code instead of 75: $(tail -3 on.err)"
  [ "$name" = mpi ] || [ "$(grep -c '^stopping after the current step' on.err)" = 1 ] || fail "$name: no answer to the signal: $(tail -3 on.err)"
  flags=$(sed -n 's/.*; \(--config .*\) resumes it$/\1/p' on.err)
  [ -e on/model.safetensors ] && fail "$name: it had ended before the signals"
  # By the flags that it has named, under mpirun by the command itself.
  if [ "$name" = mpi ]; then set -- "$@" --output-dir "$work/on" --resume auto; else eval "set -- '$program' $flags"; fi
  "$@" >on.out 2>on.err || fail "$name: resume with $*: $(tail -2 on.err)"
  cmp -s "$name/model.safetensors" on/model.safetensors || fail "$name: the resumed run has different weights"
}

for i in {1..300}; do echo "line $((i % 7)): the cat saw the dog $((i * i % 13))"; done >a.txt
common=(--deterministic --print-freq 2 --save-every 0)
tiny=("$resnet" "${common[@]}" --image-size 16 --batch-size 4)
image=("${tiny[@]}" --steps 200)
text=("$lm" --data "$work/a.txt" "${common[@]}" --emsize 64 --nhid 64 --nlayers 1 --batch-size 4 --bptt 20 --epochs 10 --generate 0)
for threads in 1 2; do
  for kind in image text; do
    declare -n command=$kind
    "${command[@]}" --threads $threads --output-dir "$kind$threads" 2>err || fail "$kind$threads: $(tail -1 err)"
    for ((i = 0; i < ${RUNS:-1}; i++)); do twelve "$kind$threads" "${command[0]}" "${command[@]}" --threads $threads; done
  done
done
if [ -n "$mpirun" ]; then
  "${two_ranks[@]}" "${text[@]}" --threads 1 --output-dir mpi 2>err || fail "mpi: $(tail -1 err)"
  for ((i = 0; i < ${RUNS:-1}; i++)); do twelve mpi "$lm" "${two_ranks[@]}" "${text[@]}" --threads 1; done
  # A rank that never starts: MPI's start has no deadline of its own.
  timeout -k 5 120 "$mpirun" --allow-run-as-root --oversubscribe -n 1 "${text[@]}" --comm-timeout 5 --output-dir stopped : \
    -n 1 sh -c 'kill -STOP $$; exec "$@"' "$work/rank" "${text[@]}" --comm-timeout 5 --output-dir stopped 2>err; code=$?
  [ $code != 0 ] && [ $code != 124 ] && [ $code != 137 ] || fail "a rank that never starts: exit code $code"
  grep -q '^\[rank 0\].* 5 s' err || fail "a rank that never starts: $(cat err)"
  # What the first rank does alone after the training, here writing for some seconds, has no deadline.
  "${two_ranks[@]}" "$lm" --data "$work/a.txt" --nhid 256 --nlayers 2 --threads 1 --steps 2 --train --generate 8000 --comm-timeout 1 \
    --output-dir writes >out 2>err; code=$?
  [ $code = 0 ] && [ "$(wc -c <out)" -gt 8000 ] || fail "a long text after training: exit code $code, $(tail -2 err)"
else
  echo 'no mpirun: its part is skipped'
fi

# Where nothing is trained a signal ends the program as it does any other.
"$lm" --evaluate >out 2>err & pid=$!
wait_for err '--init'
kill -TERM $pid; wait $pid 2>/dev/null; code=$?
[ $code = 143 ] || fail "a signal during --evaluate: exit code $code"
# nohup: a terminal that is closed must not end the run.
nohup "${tiny[@]}" --steps 200 --output-dir nohup >/dev/null 2>err & pid=$!
wait_for err 'step [0-9]*/'
kill -HUP $pid; wait $pid; code=$?
[ $code = 0 ] || fail "SIGHUP under nohup: exit code $code"

# Ctrl-C also ends the reader of a pipe, as `tee`: the answer to the signal must not end the run before it is saved.
mkfifo pipe
cat pipe >/dev/null & reader=$!
env --default-signal=PIPE "${tiny[@]}" --steps 100000 --print-freq 1000000 --output-dir piped 2>pipe & pid=$!
wait_for piped/metrics.jsonl '"loss"'
kill -KILL $reader; wait $reader 2>/dev/null
kill -INT $pid; wait $pid 2>/dev/null
ls piped/checkpoints/step-*/manifest.json >/dev/null || fail 'a broken pipe: nothing was saved'

# So must not the run's own lines; without a signal, a reader that is gone ends the run in the same way.
for signal in INT none; do
  cat pipe >/dev/null & reader=$!
  env --default-signal=PIPE "${tiny[@]}" --steps 100000 --print-freq 1 --output-dir piped_$signal 2>pipe & pid=$!
  wait_for piped_$signal/metrics.jsonl '"loss"'
  kill -KILL $reader; wait $reader 2>/dev/null
  [ $signal = none ] || kill -INT $pid
  wait $pid 2>/dev/null; code=$?
  [ $code = 75 ] || fail "a broken pipe and $signal: exit code $code"
  ls piped_$signal/checkpoints/step-*/manifest.json >/dev/null || fail "a broken pipe and $signal: nothing was saved"
done

# The descriptor of a closed stream must not be reused for a file of the run.
"${tiny[@]}" --steps 4 --output-dir closed 2>&- || fail "without stderr: exit code $?"
grep -qv '^{' closed/metrics.jsonl && fail "without stderr: $(grep -v '^{' closed/metrics.jsonl | head -1)"
"${tiny[@]}" --steps 4 --output-dir closed_all <&- >&- 2>&- || fail "without standard streams: exit code $?"
grep -qv '^{' closed_all/metrics.jsonl && fail "without standard streams: $(grep -v '^{' closed_all/metrics.jsonl | head -1)"
"${tiny[@]}" --steps 4 --json --output-dir closed_out >&- 2>err; code=$?
[ $code = 1 ] && grep -q 'stdout' err || fail "--json without stdout: exit code $code, $(tail -1 err)"

finish
