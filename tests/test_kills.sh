#!/usr/bin/env bash
# If a rank dies, stops or exits, all others end too: every process ends with a failure, and none
# survives. mpirun notices a death, our own timeout the rest; its messages name rank, step,
# collective and the rank that is missing.
#   tests/test_kills.sh build/faulty_rank [mpirun]      KILLS=20 for the long form
set -u
program=$(realpath "$1") || exit 2
mpirun=${2:-}
. "$(dirname "$0")/program.sh"
at_exit() { pkill -KILL -f "$work/"; }
export COMM_TIMEOUT=${COMM_TIMEOUT:-10}

# Starts four ranks of a program under its own path, so that surviving processes can be found, and waits
# until they train.
start() {  # NAME ARGUMENT…
  name=$1; shift
  mkdir "$work/$name" && cp "$program" "$work/$name/rank" || exit 2
  "$mpirun" -n 4 --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "$work/$name/rank" "$@" \
    >"$work/$name.out" 2>"$work/$name.err" &
  launcher=$!
  for _ in {1..1800}; do
    grep -qs training "$work/$name.err" && return 0
    kill -0 "$launcher" 2>/dev/null || break
    sleep 0.1
  done
  grep -qs training "$work/$name.err" && return 0
  fail "$name: no training after 180 s: $(head -c 400 "$work/$name.err")"
}
ranks_of() { pgrep -f "^$work/$1/rank"; }
# Waits for the end: not 0, no process left, and the message when one is expected.
expect_end() {  # NAME LAUNCHER SECONDS [PATTERN]
  local code i
  for ((i = 0; i < $3 * 10; i++)); do kill -0 "$2" 2>/dev/null || break; sleep 0.1; done
  if kill -0 "$2" 2>/dev/null; then
    fail "$1: still there after $3 s; ranks: $(ranks_of "$1" | tr '\n' ' '); they said: $(tail -c 800 "$work/$1.err")"
    kill -KILL "$2"
  fi
  wait "$2"; code=$?
  [ $code != 0 ] || fail "$1: exit code 0"
  for i in {1..300}; do [ -z "$(ranks_of "$1")" ] && break; sleep 0.1; done
  [ -z "$(ranks_of "$1")" ] || { fail "$1: processes are left: $(ranks_of "$1" | tr '\n' ' ')"; pkill -KILL -f "$work/$1/"; }
  [ -z "${4:-}" ] || grep -Eq "$4" "$work/$1.err" || fail "$1: '$4' is not in: $(head -c 800 "$work/$1.err")"
}
# What a neighbour of this rank says when it gives up.
silence_of() { echo "rank [0-3] of 4, all_reduce of bucket [0-9]+, step [0-9]+: no answer from rank $1 "; }

# An exception in one learner's thread ends the process.
timeout -k 5 120 "$program" throw 2 50 4 2>"$work/threads.err"; code=$?
[ $code = 1 ] || fail "threads: exit code $code"
grep -q 'bad luck in' "$work/threads.err" || fail "threads: $(cat "$work/threads.err")"

if [ -n "$mpirun" ]; then
  for ((i = 0; i < ${KILLS:-3}; i++)); do
    start "kill$i" none
    mapfile -t pids < <(ranks_of "kill$i")
    [ ${#pids[@]} = 4 ] || fail "kill$i: ${#pids[@]} ranks"
    sleep "0.$((RANDOM % 900 + 100))"
    [ ${#pids[@]} = 0 ] || kill -KILL "${pids[RANDOM % ${#pids[@]}]}"
    expect_end "kill$i" $launcher 120
  done
  # mpirun notices none of these.
  start stopped none; stopped=$launcher
  pid=$(ranks_of stopped | sed -n 3p)
  kill -STOP "$pid"
  rank=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
  start left return 2 50; left=$launcher
  start thrown throw 1 50; thrown=$launcher
  expect_end thrown $thrown 120 '\[rank 1\].*bad luck in'
  expect_end stopped $stopped $((COMM_TIMEOUT + 110)) "$(silence_of "$rank")"
  expect_end left $left $((COMM_TIMEOUT + 110)) "$(silence_of 2)"
else
  echo 'skipped: ranks under mpirun (no mpirun here)'
fi
finish
