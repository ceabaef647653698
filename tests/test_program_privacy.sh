#!/usr/bin/env bash
# Training with differential privacy: what is refused, what a run says about its privacy, and that kills, resumes and
# changed options never make it claim more than it can.
#   tests/test_program_privacy.sh build/train_resnet build/train_lm [mpirun]      KILLS=10 for the long form
set -u
train=$(realpath "$1") || exit 2
lm=$(realpath "$2") || exit 2
mpirun=${3:-}
tests=$(realpath "$(dirname "$0")")
kills=${KILLS:-3}
. "$(dirname "$0")/program.sh"

# about RESULT PYTHON: checks a condition on the final JSON object, `j`, and its privacy, `p`.
about() {
  python3 - "$1" "$2" <<'P' || fail "$1: $2: $(tail -1 "$1" | cut -c1-600)"
import json, math, sys
j = json.loads(open(sys.argv[1]).read().splitlines()[-1]); p = j['privacy']
def renyi(q, z, steps, delta):  # the sampled Gaussian mechanism, once more, for a recount
    best = math.inf
    for a in list(range(2, 65)) + [72, 80, 96, 112, 128, 160, 192, 256]:
        terms = [math.lgamma(a + 1) - math.lgamma(i + 1) - math.lgamma(a - i + 1) + (i * math.log(q) if i else 0)
                 + ((a - i) * math.log1p(-q) if a - i else 0) + (i * i - i) / (2 * z * z) for i in range(a + 1)]
        top = max(terms)
        rdp = steps * (top + math.log(sum(math.exp(t - top) for t in terms))) / (a - 1)
        best = min(best, rdp + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1))
    return best
sys.exit(0 if eval(sys.argv[2]) else 1)
P
}

shapes=("$train" --arch cnn --image-size 16 --threads 1 --no-report --print-freq 1)
groups=("${shapes[@]}" --learners 4 --batch-size 1 --dp-unit group --dp-rate 0.01 --lr 0.001)

echo 'refused'
refuse 'noise of 184.* sum to 4 if all.*--dp-anyway' "${shapes[@]}" --learners 4 --compress topagg:epsilon=8 --steps 200
refuse 'sigma=X.*--dp-anyway' "${groups[@]}" --compress topagg --steps 3
refuse 'bn1.running_mean' "$train" --image-size 16 --learners 2 --compress topagg:sigma=1 --steps 3
refuse 'dp-rate' "${shapes[@]}" --learners 2 --compress topagg:sigma=1 --dp-unit group
refuse 'dp-rate needs' "${shapes[@]}" --learners 2 --compress topagg:sigma=1 --dp-rate 0.1
refuse 'needs --compress topagg' "${shapes[@]}" --learners 2 --dp-unit group
refuse 'noise-seed' "${groups[@]}" --compress topagg:sigma=30 --deterministic
refuse 'vocabulary' "$lm" --learners 2 --compress topagg:sigma=1
refuse 'auto' "${groups[@]}" --compress auto:topagg:sigma=30
printf 'peers = "ring"\n' >peers.toml
refuse 'peers' "${groups[@]}" --compress topagg:density=0.1,sigma=30 --config peers.toml
for shard in random by-class; do refuse 'shard fixed' "${shapes[@]}" --learners 4 --compress topagg:sigma=1 --shard $shard; done
refuse 'dp-delta' "${groups[@]}" --compress topagg:density=0.1,sigma=30 --dp-delta 0.001
refuse 'dp-delta' "${groups[@]}" --compress topagg:density=0.1,sigma=30 --dp-delta 0.5 --dp-anyway  # would be called private
refuse 'protects nobody' "${groups[@]}" --compress topagg:density=0.1,sigma=0.01
refuse 'hide' "${shapes[@]}" --compress topagg:sigma=2
refuse 'dp-rate' "${groups[@]}" --compress topagg:sigma=30 --dp-rate 1e-9
HEDDLE_DP_UNIT=group "${shapes[@]}" --steps 2 --output-dir none >/dev/null 2>none.err || fail "a unit, without votes: $(tail -1 none.err)"
for flag in '--accumulate 2' '--compress-start 5' '--dense-layers fc' '--shadow 5' '--layerwise lgreco'; do
  # shellcheck disable=SC2086
  refuse "${flag%% *}" "${groups[@]}" --compress topagg:sigma=30 $flag
done
for line in 'accumulate = 2' 'layerwise = "lgreco"' 'shadow = 5' 'deterministic = true'; do  # as files may
  echo "$line" >odd.toml
  refuse "${line%% *}" "${groups[@]}" --compress topagg:sigma=30 --config odd.toml
done
refuse 'one step spends' "${groups[@]}" --compress topagg:density=0.1,sigma=30 --dp-epsilon-max 0.1 --steps 3

echo 'what a run says'
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 30 --save-every 10 --json --output-dir said >said.json 2>said.err ||
  fail "said: $(tail -1 said.err)"
about said.json "p['private'] and p['queries'] == 30 == j['step'] and p['rate'] == 0.01 and p['sigma'] == 30"
about said.json "abs(p['epsilon'] - renyi(0.01, p['noise_multiplier'], 30, 1e-5)) < 1e-6 * p['epsilon']"
about said.json "abs(p['noise_multiplier'] - 30 / math.sqrt(43 + 2 + 461 + 3 + 512 + 1)) < 1e-9"
grep -q "epsilon .* for an image, used or left out" said.err || fail "no epsilon in the last line: $(tail -1 said.err)"
grep -q 'epsilon' <(grep 'step 10/' said.err) || fail 'no epsilon in the line of progress'
grep -q '"epsilon":' said/metrics.jsonl || fail 'no epsilon in metrics.jsonl'
grep -aq 'an image, used or left out' said/model.safetensors || fail 'the weights do not say it'
grep -aq 'an image, used or left out' said/checkpoints/*/model.safetensors || fail 'the checkpoint does not say it'

echo 'the example of docs/privacy.md'
page=$tests/../docs/privacy.md
sed -n '/^```python/,/^```/p' "$page" | grep -v '^```' >count.py
by_hand=$(python3 count.py)
grep -q "prints $by_hand, at order" "$page" || fail "docs/privacy.md: its lines print $by_hand"
command=$(grep -- '--dry-run' "$page" | sed 's/.*train_resnet //')
# shellcheck disable=SC2086
"$train" $command --quiet >plan.txt 2>plan.err || fail "docs/privacy.md: $(tail -1 plan.err)"
grep -q "epsilon $(printf %.3f "$by_hand") at delta" plan.txt || fail "docs/privacy.md: $by_hand by hand, $(grep epsilon plan.txt)"
grep -q 'a vote has 2558 elements, noise multiplier 1,' plan.txt || fail "docs/privacy.md: $(grep epsilon plan.txt)"
# shellcheck disable=SC2086
"$train" $command --quiet --json >plan.json 2>plan.err
[ "$(printf %.4f "$(json plan.json epsilon)")" = "$by_hand" ] || fail "docs/privacy.md: $(cat plan.json)"

echo 'a dense start from a file is not used'
echo 'compress-start = 20' >start.toml
"${groups[@]}" --compress topagg:sigma=30,noise-seed=3 --steps 3 --json --config start.toml --output-dir start >start.json 2>start.err
"${groups[@]}" --compress topagg:sigma=30,noise-seed=3 --steps 3 --json --output-dir nostart >nostart.json 2>nostart.err
same_losses start nostart 'compress-start in a file'
about start.json "p['queries'] == 3"

echo 'noise'
"${groups[@]}" --compress topagg:sigma=30 --steps 3 --deterministic --output-dir x >x.out 2>x.err && fail 'deterministic noise'
for run in one two; do
  "${groups[@]}" --compress topagg:sigma=30,noise-seed=3 --deterministic --steps 12 --save-every 5 --json --output-dir $run >$run.json 2>$run.err
  "${groups[@]}" --compress topagg:sigma=30 --steps 12 --json --output-dir secret-$run >secret-$run.json 2>secret-$run.err
done
cmp -s one/model.safetensors two/model.safetensors || fail 'noise-seed does not repeat a run'
cmp -s secret-one/model.safetensors secret-two/model.safetensors && fail 'secret noise repeats a run'
grep -q 'NOT PRIVATE' <(tail -1 one.err) || fail "noise-seed: $(tail -1 one.err)"
about one.json "not p['private'] and not p['secret_noise']"
grep -aq 'NOT PRIVATE' one/model.safetensors || fail 'the weights of a seeded run claim privacy'
"${groups[@]}" --compress topagg:sigma=30,noise-seed=3 --deterministic --steps 12 --save-every 5 --json --resume one/checkpoints/step-10 \
  --output-dir again >again.json 2>again.err || fail "resume with a seed: $(tail -1 again.err)"
cmp -s one/model.safetensors again/model.safetensors || fail 'a resumed run with noise-seed ends with other bits'
"${groups[@]}" --compress topagg --dp-anyway --steps 3 --json --output-dir silent >silent.json 2>silent.err
about silent.json "not p['private'] and p['epsilon'] is None"
grep -q 'NOT PRIVATE' <(tail -1 silent.err) || fail "no noise: $(tail -1 silent.err)"

echo 'a learner as the unit'
"${shapes[@]}" --learners 4 --batch-size 8 --compress topagg:density=0.01,sigma=10 --dp-anyway --steps 5 --json --output-dir unit >unit.json 2>unit.err
about unit.json "'4 learners, replaced' in p['unit'] and abs(p['noise_multiplier'] - 10 / (2 * math.sqrt(4 + 1 + 46 + 1 + 51 + 1))) < 0.02"
grep -q 'shard = "fixed"' unit/config.toml || fail "learners share images: $(grep shard unit/config.toml)"

echo '--dp-epsilon-max'
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --dp-epsilon-max 1.5 --steps 200 --json --output-dir limit >limit.json 2>limit.err
about limit.json "j['status'] == 'done' and p['epsilon'] <= 1.5 and 0 < j['step'] < 200"
about limit.json "renyi(0.01, p['noise_multiplier'], j['step'] + 1, 1e-5) > 1.5"
grep -q 'raise epsilon above 1.5' limit.err || fail 'the end is not explained'

echo 'kills and resumes'
run=("${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 100 --save-every 25 --comm-timeout 20 --json --output-dir killed)
released=0
for ((kill = 0; kill < kills; kill++)); do
  rm -f killed.err
  "${run[@]}" --resume auto >killed.json 2>killed.err & pid=$!
  wait_for killed.err "step $((kill * 25 / kills + 3 + RANDOM % 12))/"
  kill -KILL $pid; wait $pid 2>/dev/null
  # What progress has shown was computed with noisy sums that were revealed.
  released=$((released + $(grep -c 'step [0-9]*/' killed.err)))
  counted=$(json killed/privacy.json queries)
  [ "$counted" -ge $released ] || fail "kill $kill: $counted queries are counted, $released were revealed"
  [ "$counted" -le $((released + 2 * (kill + 1))) ] || fail "kill $kill: $counted queries for $released steps"
done
before=$(json killed/privacy.json queries)
"${run[@]}" --resume auto >killed.json 2>killed.err || fail "after kills: $(tail -1 killed.err)"
about killed.json "j['step'] == 100 and p['queries'] >= 100 and p['queries'] >= $before"
about killed.json "p['queries'] > 100 and abs(p['epsilon'] - renyi(0.01, p['noise_multiplier'], p['queries'], 1e-5)) < 1e-6 * p['epsilon']"
grep -q 'after [0-9]* steps more' killed.err || fail "a resumed run promises: $(grep privacy: killed.err)"
"${run[@]}" --resume auto >done.json 2>done.err || fail "a complete run: $(tail -1 done.err)"
about done.json "p['private'] and p['queries'] > 100"
# A checkpoint without its run folder carries its own account, another folder's run continues it.
mkdir elsewhere && cp -r said/checkpoints/step-30 elsewhere/
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 40 --json --resume elsewhere/step-30 --output-dir moved >moved.json 2>moved.err ||
  fail "moved: $(tail -1 moved.err)"
about moved.json "p['queries'] == 40"
"${groups[@]}" --learners 2 --compress topagg:density=0.1,sigma=30 --steps 40 --json --resume elsewhere/step-30 --output-dir fewer >fewer.json \
  2>fewer.err || fail "with other learners: $(tail -1 fewer.err)"
about fewer.json "p['queries'] == 40 and p['private']"

echo 'a budget holds over resumes'
budget=("${groups[@]}" --compress topagg:density=0.1,epsilon=1.4 --save-every 5 --json)
"${budget[@]}" --steps 20 --output-dir budget >budget.json 2>budget.err || fail "budget: $(tail -1 budget.err)"
about budget.json "1.39 < p['epsilon'] <= 1.4 and j['step'] == 20"
"${budget[@]}" --steps 60 --resume budget --output-dir more >more.json 2>more.err || fail "more steps: $(tail -1 more.err)"
about more.json "p['epsilon'] <= 1.4 + 1e-9"
refuse 'spent already' "${groups[@]}" --compress topagg:density=0.1,epsilon=1.4 --steps 60 --resume budget --dp-epsilon-max 1
cp -r budget untouched
further=("${budget[@]}" --steps 60 --resume budget/checkpoints/step-15 --output-dir budget)
says 2 'spent already' "${further[@]}" --dp-epsilon-max 1
says 1 'missing/t.json' "${further[@]}" --trace missing/t.json
says 2 'spent already' "${further[@]}" --batch-size 2 --resume-anyway  # an account of other units
diff -r budget untouched >&2 || fail 'a refused run has changed its folder'

echo 'the account of a run folder'
for path in killed/checkpoints/step-75 killed/checkpoints/step-75/ "$work/killed/../killed/checkpoints/step-75"; do
  rm -rf path
  "${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 80 --json --resume "$path" --output-dir path >path.json 2>path.err ||
    fail "$path: $(tail -1 path.err)"
  about path.json "p['private'] and p['queries'] == $(json killed/privacy.json queries) + 5"
done
cp -r killed broken
for text in '{"queries":1e300,"spent":[],"unit":""}' '{"queries":3,"spent":[1,2],"unit":""}' '{"queries":3}' '[' '{"queries":-1,"spent":[],"unit":""}'; do
  echo "$text" >broken/privacy.json
  refuse 'broken/privacy.json' "${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 80 --resume broken/checkpoints/step-75
done
rm broken/privacy.json
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 80 --json --resume broken/checkpoints/step-75 --output-dir lost >lost.json 2>lost.err
about lost.json "not p['private']"

echo 'what cannot be accounted for'
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 15 --json --resume one/checkpoints/step-10 --resume-anyway \
  --output-dir known >known.json 2>known.err || fail "after known noise: $(tail -1 known.err)"
about known.json "not p['private'] and p['epsilon'] is None"
refuse 'init' "${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 3 --init said/model.safetensors
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 3 --init said/model.safetensors --dp-anyway --json --output-dir again2 \
  >init.json 2>init.err || fail "init: $(tail -1 init.err)"
about init.json "'given the weights of --init' in p['unit']"
refuse 'privacy-unit' "${groups[@]}" --batch-size 2 --compress topagg:density=0.1,sigma=30 --steps 40 --resume said/checkpoints/step-30
"${groups[@]}" --batch-size 2 --compress topagg:density=0.1,sigma=30 --steps 40 --resume said/checkpoints/step-30 --resume-anyway --json \
  --output-dir other >other.json 2>other.err || fail "other unit: $(tail -1 other.err)"
about other.json "not p['private'] and p['epsilon'] is None"
"${shapes[@]}" --learners 2 --steps 5 --save-every 5 --batch-size 1 --output-dir dense >dense.out 2>dense.err
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 10 --resume dense --resume-anyway --json \
  --output-dir after-dense >after.json 2>after.err || fail "after dense steps: $(tail -1 after.err)"
about after.json "not p['private'] and p['epsilon'] is None"
cp -r said mixed
"${shapes[@]}" --learners 4 --batch-size 1 --steps 40 --save-every 5 --resume mixed --resume-anyway --output-dir mixed >mixed.out 2>mixed.err ||
  fail "dense steps after votes: $(tail -1 mixed.err)"
[ ! -e mixed/privacy.json ] || fail 'dense steps have left an account'
"${groups[@]}" --compress topagg:density=0.1,sigma=30 --steps 50 --resume mixed --resume-anyway --json --output-dir mixed >mixed.json 2>mixed.err ||
  fail "votes after dense steps: $(tail -1 mixed.err)"
about mixed.json "not p['private'] and p['epsilon'] is None"

if [ -n "$mpirun" ]; then
  echo 'MPI'
  ranks 2 "${shapes[@]}" --batch-size 1 --dp-unit group --dp-rate 0.01 --lr 0.001 --compress topagg:density=0.1,sigma=30,noise-seed=3 \
    --steps 5 --json --output-dir mpi >mpi.json 2>mpi.err || fail "MPI: $(tail -1 mpi.err)"
  "${shapes[@]}" --learners 2 --batch-size 1 --dp-unit group --dp-rate 0.01 --lr 0.001 --compress topagg:density=0.1,sigma=30,noise-seed=3 \
    --steps 5 --json --output-dir threads >threads.json 2>threads.err
  cmp -s mpi/model.safetensors threads/model.safetensors || fail 'MPI and threads end with other weights'
else
  echo 'skipped: MPI (no mpirun here)'
fi
finish
