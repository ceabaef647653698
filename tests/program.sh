# Shared by the tests of whole programs, which source it after resolving their arguments: an empty folder to work in,
# checks that are counted, and readers of what a run leaves. Tests compare exit codes, the final --json object,
# metrics.jsonl and files; of a message they match the name or the number that it must give, never its sentence.
# shellcheck shell=bash
work=$(mktemp -d) || exit 2
# Open MPI's processes of two tests must not remove each other's files.
export OMPI_MCA_orte_tmpdir_base=$work
mounted() { grep -qs " $work/disk " /proc/mounts; }
at_exit() { :; }  # a test's own cleaning up
trap 'at_exit; mounted && umount "$work/disk"; rm -rf "$work"' EXIT
cd "$work" || exit 2
unset "${!HEDDLE_@}"  # they are flags to the programs
# Passive: on a busy machine, threads that spin while they wait turn milliseconds into seconds.
export OMP_WAIT_POLICY=passive
failures=0

fail() { printf 'FAIL: %s\n' "$*"; failures=$((failures + 1)); }
# finish: the last line of a test.
finish() {
  [ $failures = 0 ] || { echo "$failures checks failed"; exit 1; }
  echo 'all checks passed'
  exit 0
}
# json FILE KEY: a value, as text, of the last object in the file that has the key.
json() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1" | tail -1; }
# losses FOLDER: the lines of metrics.jsonl up to what depends on the machine.
losses() { sed -n 's/,"[a-z]*_per_s":.*//p' "$1/metrics.jsonl"; }
same_losses() {  # FOLDER FOLDER WHAT
  [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ] ||
    fail "losses differ: $1 and $2 ($3): $(diff <(losses "$1") <(losses "$2") | head -4)"
}
# wait_for FILE PATTERN: until a running program has written it.
wait_for() {
  local i
  for i in {1..600}; do grep -qs -e "$2" "$1" && return 0; sleep 0.1; done
  fail "no '$2' in $1: $(tail -3 "$1")"
}
# ranks N COMMAND…: under mpirun.
ranks() { "$mpirun" -n "$1" --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "${@:2}"; }
# says CODE PATTERN COMMAND…: how a command ends, and what its stderr names. Leaves the files out and err.
says() {
  local expected=$1 pattern=$2 code; shift 2
  [ "$(type -t "$1")" = function ] || set -- timeout 300 "$@"
  "$@" >out 2>err; code=$?
  [ $code = "$expected" ] || fail "exit code $code instead of $expected: $* ($(tail -2 err | cut -c1-400))"
  grep -q -e "$pattern" err || fail "'$pattern' is not in: $(head -c 500 err) ($*)"
}
# refuse PATTERN COMMAND…: exit code 2, one line on stderr that names what is wrong (under ranks there may be more),
# nothing on stdout, no weights, and a run folder only if something was trained.
refuse() {
  local quiet=--quiet word
  for word in "$@"; do [ "$word" != --quiet ] || quiet=''; done
  rm -rf refused
  says 2 "$@" $quiet --output-dir refused
  [ "$2" = ranks ] || [ "$(wc -l <err)" = 1 ] || fail "$(wc -l <err) lines on stderr: $(head -c 500 err) (${*:2})"
  [ ! -s out ] || fail "stdout is not empty: ${*:2}"
  [ ! -e refused ] || grep -q '"loss"' refused/metrics.jsonl || fail "a run folder left behind: ${*:2}"
  [ ! -e refused/model.safetensors ] || fail "weights left behind: ${*:2}"
}
