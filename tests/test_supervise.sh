#!/usr/bin/env bash
# ./run supervise: restarts runs that were stopped or have crashed, and nothing else; gives up; forwards
# signals; leaves out hosts that do not answer.
#   tests/test_supervise.sh build/train_resnet_hooked
set -u
root=$(cd "$(dirname "$0")/.." && pwd) && program=$(realpath "$1") || exit 2
. "$root/tests/program.sh"

# A job that records its arguments, and does what the first line of `todo` says: exit with a code, leave a
# checkpoint first (+CODE), die, or wait for a signal.
cat >job <<'JOB'
#!/usr/bin/env bash
echo "$*" >>calls
what=$(head -1 todo); sed -i 1d todo
trap 'echo signalled >>calls; exit 75' USR1
case $what in
  die) kill -KILL $$ ;;
  wait) echo waits; for i in {1..300}; do sleep 0.1; done ;;
  stop) echo $$ >stopped; kill -STOP $$; exit 0 ;;
  +*) mkdir -p "out/checkpoints/step-$(wc -l <calls)"; exit "${what#+}" ;;
  *) exit "$what" ;;
esac
JOB
chmod +x job && cp job mpirun
# expect CODE CALLS TODO…: how supervise ends, and how often the job was started.
expect() {
  local code=$1 calls=$2 out; shift 2
  rm -rf calls out; printf '%s\n' "$@" >todo
  "$root/run" supervise --restarts 3 --wait 0 -- ./job --output-dir out --x 1 2>err; out=$?
  [ $out = "$code" ] || fail "$*: exit code $out instead of $code: $(tail -2 err)"
  [ "$(wc -l <calls)" = "$calls" ] || fail "$*: started $(wc -l <calls) times instead of $calls"
  [ "$(sort -u calls)" = '--output-dir out --x 1 --resume auto' ] || fail "$*: called with $(sort -u calls)"
}
expect 0 1 0
expect 0 3 75 die 0
expect 2 2 1 2 0
expect 3 1 3 0
expect 1 4 1 1 1 1 0
expect 0 9 +1 +75 +1 +134 +1 1 1 1 0  # what has saved has earned its restarts back
# Steps are compared as numbers, whatever the folder's name: 9 is not the newest of 9, 10, 11 …
# shellcheck disable=SC2016
sed 's#out/checkpoints/step-$(wc -l <calls)#my-out/checkpoints/step-$((8 + $(wc -l <calls)))#' job >numbered && chmod +x numbered
rm -f calls; printf '%s\n' +1 +1 +1 +1 +1 +1 0 >todo
"$root/run" supervise --restarts 3 --wait 0 -- ./numbered --output-dir my-out 2>err || fail "new checkpoints: exit code $?: $(tail -2 err)"
[ -d my-out/checkpoints/step-14 ] || fail "new checkpoints: $(ls my-out/checkpoints)"
refuse() { "$root/run" supervise "${@:2}" 2>err; [ $? = 2 ] && grep -q -e "$1" err || fail "'$1' is not in $(cat err)"; }
refuse 'supervise' --
refuse '--output-dir' -- ./job
refuse '--resume' -- ./job --output-dir out --resume auto
refuse '--restarts.*many' --restarts many -- ./job --output-dir out
refuse '--often' --often -- ./job --output-dir out
refuse '--wait' --wait 100000000000000000000 -- ./job --output-dir out
refuse '--wait' --wait
refuse '--output-dir' -- ./job --output-dir
refuse '--output-dir' -- ./job --output-dir --x
refuse './nowhere' --wait 0 -- ./nowhere --output-dir out
[ "$(grep -c 'nowhere: No such file' err)" = 1 ] || fail "a command that is not there was started again: $(cat err)"
refuse './todo' --wait 0 -- ./todo --output-dir out  # not a program
# A leading zero does not mean octal, and what is counted is starts.
rm -f calls; printf '%s\n' 1 1 1 >todo
"$root/run" supervise --restarts 01 --wait 00 -- ./job --output-dir out 2>err
[ $? = 1 ] && [ "$(wc -l <calls)" = 2 ] && grep -q '2 starts' err || fail "--restarts 01: $(cat calls err)"
rm -f calls; echo 0 >todo
"$root/run" supervise --wait 08 -- ./job --output-dir out 2>err || fail "--wait 08: $(cat err)"

rm -f calls; printf 'wait\n0\n' >todo
"$root/run" supervise --wait 0 -- ./job --output-dir out >said 2>err & pid=$!
for i in {1..100}; do grep -qs waits said && break; sleep 0.1; done
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] && [ "$(tail -1 calls)" = signalled ] || fail "a signal: exit code $code, $(cat calls err)"
# A run that is paused is waited for, without work, and its end counts.
rm -f calls; echo stop >todo
"$root/run" supervise --wait 0 -- ./job --output-dir out 2>err & pid=$!
for i in {1..100}; do grep -qs 'T (stopped)' "/proc/$(cat stopped 2>/dev/null)/status" && break; sleep 0.1; done
ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
before=$(ticks); sleep 0.5; spent=$(($(ticks) - before))
kill -CONT "$(cat stopped)"; wait $pid; code=$?
[ $code = 0 ] && [ $spent -lt 10 ] && [ "$(wc -l <calls)" = 1 ] || fail "paused: exit code $code, $spent ticks, $(cat calls err)"

printf '#!/usr/bin/env bash\n[ "$1" != b ]\n' >probe && chmod +x probe
hosts() {  # EXPECTED ARGUMENT…
  rm -f calls; echo 0 >todo
  SUPERVISE_PROBE=./probe "$root/run" supervise -- ./mpirun "${@:2}" ./job --output-dir out 2>err || fail "hosts: $(cat err)"
  [ "$(cat calls)" = "$1 ./job --output-dir out --resume auto" ] || fail "hosts: $(cat calls), expected $1"
}
hosts '-n 2 --host a:2' -n 4 --host a:2,b:2
hosts '--host a,c -np 2' --host a,b,c -np 3
hosts '-n 1 --host a,c' -n 1 --host a,b,c
hosts '-n 4 --host a:2,c:2' -n 4 --host a:2,c:2
hosts '-n 4' -n 4
hosts '-n 8 --host a:08' -n 9 --host a:08,b
# Flags that are impossible for the ranks that are left may be possible again later.
rm -f calls; printf '2\n0\n' >todo
SUPERVISE_PROBE=./probe "$root/run" supervise --wait 0 -- ./mpirun -n 2 --host a,b ./job --output-dir out 2>err; code=$?
[ $code = 0 ] && [ "$(wc -l <calls)" = 2 ] || fail "bad input with fewer ranks: exit code $code, $(cat calls err)"
# After a signal that comes while hosts are asked nothing is started.
rm -f calls; echo wait >todo
printf '#!/usr/bin/env bash\ntouch asked; for i in {1..300}; do [ -e sent ] && break; sleep 0.1; done\n' >slow && chmod +x slow
SUPERVISE_PROBE=./slow "$root/run" supervise -- ./mpirun -n 1 --host a ./job --output-dir out 2>err & pid=$!
for i in {1..100}; do [ -e asked ] && break; sleep 0.1; done
kill -TERM $pid; touch sent; wait $pid; code=$?
[ $code = 75 ] && [ ! -e calls ] || fail "a signal while hosts are asked: exit code $code, $(cat calls err)"
# A list of hosts is neither evaluated as arithmetic nor read as a flag by ssh.
mkdir bin && printf '#!/usr/bin/env bash\necho "$*" >>sshed; [ "${@: -2:1}" != b ]\n' >bin/ssh && chmod +x bin/ssh
for list in 'a:x[$(touch summed)0],b' '-oProxyCommand=evil' a: 'a:1:2' ''; do
  PATH=$PWD/bin:$PATH refuse '--host' -- ./mpirun --host "$list" ./job --output-dir out
done
refuse '--output-dir\|--host' -- ./mpirun --output-dir out --host
[ ! -e summed ] && [ ! -e sshed ] || fail 'an invalid list of hosts was evaluated or passed to ssh'
rm -f calls; echo 0 >todo
PATH=$PWD/bin:$PATH "$root/run" supervise -- ./mpirun -n 2 --host a,b ./job --output-dir out 2>err || fail "ssh: $(cat err)"
[ "$(cat calls)" = '-n 1 --host a ./job --output-dir out --resume auto' ] || fail "ssh: $(cat calls)"
grep -q -e '-- a true$' sshed || fail "ssh: $(cat sshed)"

# Called through a link, ./run works in its own tree, and says what it could not remove.
mkdir -p tree/build tree/build-x other/build far && touch far/kept tree/build-notes && cp "$root/run" tree/run
ln -s "$PWD/tree/run" other/run && ln -s "$PWD/far" tree/build-far
(CDPATH=. other/run clean) 2>err || fail "clean: $(cat err)"
[ -d other/build ] && [ -e far/kept ] && [ "$(ls tree | tr '\n' ' ')" = 'build-notes run ' ] || fail "clean has removed other files: $(ls other far tree)"

flags=(--image-size 16 --batch-size 4 --threads 1 --learners 2 --steps 30 --save-every 5 --deterministic)
"$program" "${flags[@]}" --output-dir whole --quiet || fail 'train_resnet'
TEST_SAVE_KILL_AT=11 "$root/run" supervise --wait 0 -- "$program" "${flags[@]}" --output-dir killed 2>err ||
  fail "a program that is killed: $(tail -2 err)"
[ "$(grep -c 'exit code 137' err)" -ge 2 ] || fail "killed too seldom: $(grep exit err)"
cmp -s whole/model.safetensors killed/model.safetensors || fail 'the weights differ'

finish
