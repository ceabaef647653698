#!/usr/bin/env bash
# A network on a graph, as a user would train it: files, learners as threads and under mpirun with the same bits,
# features that travel, checkpoints and kills, exact evaluation, predictions, Debian's packages, and what is refused.
#   tests/test_program_gcn.sh build/train_gcn build/train_resnet [mpirun]      KILLS=20 for the long form
set -u
sources=$(cd "$(dirname "$0")/.." && pwd)
gcn=$(realpath "$1") && resnet=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$sources/tests/program.sh"
mine() { pgrep -f "^$work/gcn "; }
at_exit() { kill -KILL $(mine) 2>/dev/null; }
cp "$gcn" "$work/gcn" && gcn=$work/gcn || exit 2  # a name of its own, so that surviving processes can be found

small=("$gcn" --data sbm:nodes=1200,classes=4 --threads 1 --no-report --print-freq 4 --deterministic)

echo 'refused'
refuse "layers, found 3" "${small[@]}" --fanout 5,5,5
refuse 'expected budget=X' "${small[@]}" --learners 2 --skew 5x
refuse 'number from 1 to' "${small[@]}" --learners 2 --skew budget=0.5
refuse 'either' "${small[@]}" --learners 2 --skew budget=1.5,s=2
refuse 'plain' "${small[@]}" --learners 2 --skew local --skew-weights unbiased
refuse 'needs several learners' "${small[@]}" --partition ldg
refuse 'no such\|nowhere' "${small[@]}" --learners 2 --partition nowhere
refuse 'fp32' "${small[@]}" --precision bf16
refuse 'sampled steps differ' "${small[@]}" --graph on
refuse 'votes do not hide' "${small[@]}" --compress topagg:sigma=1 --learners 2
refuse 'whole number from 4' "$gcn" --data sbm:nodes=3
refuse 'nearest is classes' "$gcn" --data sbm:clases=3
refuse 'labels.txt' "$gcn" --data "$work"
refuse '1200.*no such node\|no such node.*1199' "${small[@]}" --train --predict 1200
refuse 'needs --init' "${small[@]}" --predict 1

echo 'it learns, and what it says of itself'
"${small[@]}" --epochs 8 --batch-size 32 --learners 4 --ledger --json --output-dir learned >learned.json 2>learned.err ||
  fail "learned: $(tail -1 learned.err)"
awk -v a="$(json learned.json test_acc1)" 'BEGIN { exit !(a > 75) }' || fail "accuracy $(json learned.json test_acc1), a guess has 25"
"${small[@]}" --evaluate --init learned --json >again.json 2>again.err || fail "evaluate: $(tail -1 again.err)"
[ "$(json again.json test_acc1)" = "$(json learned.json test_acc1)" ] || fail "evaluated by one learner: $(cat again.json)"
python3 - learned.json learned/metrics.jsonl <<'P' || fail "features: $(tail -1 learned.json)"
import json, sys
final = json.loads(open(sys.argv[1]).read())
lines = [json.loads(l) for l in open(sys.argv[2])]
steps = [l for l in lines if l.get("split") == "train"]
ledger = next(l["ledger"] for l in lines if "ledger" in l)
rows = sum(l["feature_rows"] for l in steps)  # of the first rank
assert len(steps) == final["step"] and rows > 0
# A row is 64 bits; ids are 4 bytes. The first rank's, exactly; the mean over ranks is near it.
assert ledger["features"]["features"]["received"] == 8 * rows
assert ledger["features ids"]["features"]["sent"] == 4 * rows
assert final["feature_bytes"] == 8 * final["feature_rows"]
assert 0.7 < final["feature_rows"] * len(steps) / rows < 1.4
assert 0 < final["remote_share"] < final["cut"] < 1 and 1.3 < final["inflation"] <= 1.5 + 1e-6
assert final["test_loss"] > 0 and final["valid_acc1"] > 70
# Nothing is counted twice, and nothing is left out.
assert sum(k["sent"] for layer in ledger.values() for k in layer.values()) == final["bytes_sent"]
P
grep -q 'bytes sent.*features' learned.err || fail 'no column of features in the ledger'
"${small[@]}" --init learned --predict 7 1199 --json >predicted.json 2>predicted.err || fail "predict: $(tail -1 predicted.err)"
python3 - predicted.json <<'P' || fail "predictions: $(cat predicted.json)"
import json, sys
nodes = json.loads(open(sys.argv[1]).read())["predictions"]
assert [n["node"] for n in nodes] == ["7", "1199"] and [n["label"] for n in nodes] == ["block 3", "block 3"]
for n in nodes:
    shares = [b["probability"] for b in n["best"]]
    assert len(shares) == 4 and shares == sorted(shares, reverse=True) and abs(sum(shares) - 1) < 1e-6
P
"${small[@]}" --model gcn --epochs 8 --batch-size 32 --learners 2 --json --output-dir convolved >convolved.json 2>convolved.err ||
  fail "gcn: $(tail -1 convolved.err)"
awk -v a="$(json convolved.json test_acc1)" 'BEGIN { exit !(a > 75) }' || fail "gcn: accuracy $(json convolved.json test_acc1), a guess has 25"
"${small[@]}" --dry-run --learners 2 --json >plan.json 2>plan.err || fail "dry run: $(tail -1 plan.err)"
[ "$(json plan.json model)" = '"sage"' ] || fail "plan: $(cat plan.json)"
"${small[@]}" --headroom 1 --learners 2 >headroom.txt 2>headroom.err || fail "headroom: $(tail -1 headroom.err)"
"${small[@]}" --init learned --train --steps 3 --data sbm:nodes=1200,classes=4,own=0.5 --output-dir more --quiet || fail 'a graph with the same classes'
refuse 'features' "${small[@]}" --init learned --evaluate --data sbm:nodes=1200,classes=5
"$resnet" --image-size 8 --steps 1 --batch-size 4 --quiet --no-report --output-dir resnet || fail 'train_resnet'
refuse 'train_resnet' "${small[@]}" --init resnet --evaluate

echo 'the same bits'
steps=(--steps 14 --batch-size 16 --save-every 3 --keep 99 --quiet)
four=("${small[@]}" "${steps[@]}" --learners 4 --compress scalecom:rate=10 --compress-start 3)
"${four[@]}" --output-dir whole --json >whole.json 2>whole.err || fail "whole: $(tail -1 whole.err)"
"${four[@]}" --overlap off --output-dir off || fail 'overlap off'
same_losses whole off 'features and exchange after backward'
cmp -s whole/model.safetensors off/model.safetensors || fail 'overlap changes the weights'
if [ -n "$mpirun" ]; then
  ranks 4 "${small[@]}" "${steps[@]}" --compress scalecom:rate=10 --compress-start 3 --output-dir mpi || fail 'mpirun'
  same_losses whole mpi 'threads and processes'
  cmp -s whole/model.safetensors mpi/model.safetensors || fail 'processes end with other weights than threads'
else
  echo 'skipped: processes (no mpirun here)'
fi
from() { rm -rf "$1"; cp -r whole "$1" && find "$1/checkpoints" -mindepth 1 -maxdepth 1 ! -name step-6 -exec rm -r {} +; rm "$1/model.safetensors"; }
from on
"${four[@]}" --output-dir on --resume auto --json >on.json || fail 'resume'
grep -q '"split":"test".*"nodes_per_s":' whole/metrics.jsonl || fail 'no rate of the test'
awk -v r="$(sed -n 's/.*"split":"test".*"nodes_per_s":\([^},]*\).*/\1/p' whole/metrics.jsonl)" 'BEGIN { exit !(r > 0 && r < 1e10) }' ||
  fail "a rate that nobody has measured: $(grep '"split":"test"' whole/metrics.jsonl)"
for key in feature_rows remote_share inflation; do
  [ "$(json on.json $key)" = "$(json whole.json $key)" ] || fail "resumed, $key: $(json on.json $key) instead of $(json whole.json $key)"
done
same_losses whole on 'resumed'
cmp -s whole/model.safetensors on/model.safetensors || fail 'a resumed run ends with other weights'
for r in 0 1 2 3; do
  cmp -s "whole/checkpoints/step-12/rank-$r.safetensors" "on/checkpoints/step-12/rank-$r.safetensors" || fail "rank $r has another state"
done
from less
"${four[@]}" --learners 2 --output-dir less --resume auto 2>less.err || fail "with two learners: $(tail -1 less.err)"
from other
says 2 'hash' "${four[@]}" --data sbm:nodes=1200,classes=4,own=0.5 --output-dir other --resume auto
"${four[@]}" --output-dir on --resume auto --json >done.json 2>done.err || fail "a finished run: $(tail -1 done.err)"
[ "$(json done.json test_acc1)" = "$(json whole.json test_acc1)" ] || fail "a finished run: $(cat done.json)"
[ "$(json done.json graph_hash)" = "$(json whole.json graph_hash)" ] && [ "$(json done.json feature_rows)" = "$(json whole.json feature_rows)" ] ||
  fail "keys of a finished run: $(cat done.json)"
for flags in '--model gcn' '--layers 3 --fanout 3,2,0' '--accumulate 2' '--peers ring --innovation dyna' '--dropout 0.5' '--skew local' \
  '--skew 8 --skew-weights unbiased' '--partition random --compress qsgd:bits=4' '--layers 1'; do
  # shellcheck disable=SC2086
  "${small[@]}" "${steps[@]}" --learners 3 $flags --output-dir flags --json >flags.json 2>flags.err || fail "$flags: $(tail -1 flags.err)"
  [ "$(json flags.json status)" = '"done"' ] || fail "$flags: $(cat flags.json)"
  rm -rf flags
done

echo 'four learners that read all neighbours are one'
python3 - <<'P'
import pathlib, random
rng, n = random.Random(3), 80
folder = pathlib.Path("graph")
folder.mkdir()
write = lambda name, lines: (folder / name).write_text("".join(f"{line}\n" for line in lines))
write("labels.txt", ["even" if v % 8 < 4 else "odd" for v in range(n)])
write("features.txt", [f"0:{rng.random():.3f} {1 + v % 8 // 4}:{rng.random():.3f} 3:{rng.gauss(0, 1):.3f}" for v in range(n)])
write("edges.txt", [f"{v} {(v + 8 * rng.randrange(10) + rng.randrange(3)) % n}" for v in range(n - 1) for _ in range(3)])
write("split.txt", ["train"] * 64 + ["valid"] * 8 + ["test"] * 8)
write("names.txt", [f"node {v}" for v in range(n)])
pathlib.Path("parts").write_text("".join(f"{v % 4}\n" for v in range(n)))  # 16 nodes for training each
P
graph=("$gcn" --data graph --threads 1 --no-report --fanout 0,0 --optimizer sgd --lr 0.1 --steps 10 --lr-scheduler constant --json --quiet)
"${graph[@]}" --batch-size 64 --output-dir one >one.json || fail 'one learner'
"${graph[@]}" --batch-size 16 --learners 4 --partition parts --output-dir four >four.json || fail 'four learners'
if [ -n "$mpirun" ]; then  # hosts whose files differ
  cp -r graph graph2 && sed -i '1s/.*/1 2/' graph2/edges.txt
  same=("$mpirun" --allow-run-as-root --oversubscribe -n 1 "${graph[@]}" --output-dir unlike : -n 1 "${graph[@]/#graph/graph2}" --output-dir unlike)
  says 2 'rank 1 has another graph' "${same[@]}"
fi
python3 - one four <<'P' || fail "losses: $(losses one | tail -2) $(losses four | tail -2)"
import json, sys
def losses(folder):
    return [l["loss"] for l in map(json.loads, open(folder + "/metrics.jsonl")) if "loss" in l]
one, four = losses(sys.argv[1]), losses(sys.argv[2])
# Half of a node's neighbours or fewer are of its own class here: without them the losses would differ at once.
assert len(one) == len(four) > 10 and all(abs(a - b) < 1e-5 * a for a, b in zip(one, four)), (one, four)
assert one[0] - one[-3] > 1e-3
P
"${graph[@]}" --train --predict 'node 3' 79 --output-dir names >names.json || fail 'names'
"${graph[@]}" --learners 4 --partition parts --batch-size 16 --train --predict 'node 3' 79 --output-dir names4 >names4.json || fail 'names of four'
"$gcn" --data graph --threads 1 --init names4 --predict 'node 3' 79 --json --quiet >alone.json || fail 'names of four, alone'
python3 - names4.json alone.json <<'P' || fail "one learner predicts other classes than four: $(cat names4.json alone.json)"
import json, sys
four, one = (json.loads(open(file).read())["predictions"] for file in sys.argv[1:])
assert [n["node"] for n in four] == [n["node"] for n in one] == ["node 3", "node 79"]
for a, b in zip(four, one):  # sums in another order
    assert all(x["class"] == y["class"] and abs(x["probability"] - y["probability"]) < 1e-5 for x, y in zip(a["best"], b["best"])), (a, b)
    assert abs(sum(x["probability"] for x in a["best"]) - 1) < 1e-6
P
"$gcn" --config names4/config.toml --init names4 --evaluate --json >by-config.json 2>by-config.err ||
  fail "the evaluation of a partitioned run by its configuration: $(tail -1 by-config.err)"
"$gcn" --data graph --batch-size 4096 --dry-run >most.txt 2>most.err && grep -q ' 64 nodes each' most.txt || fail "nodes of a step: $(cat most.txt)"
refuse 'workers' "${graph[@]}" --workers 2
"${graph[@]}" --learners 2 --batch-size 4 --accumulate 2 --no-quiet --print-freq 1 --output-dir twice >twice.json || fail 'accumulate'
python3 - twice <<'P' || fail "feature_rows: $(tail -1 twice.json)"
import json, sys
final = json.loads(open(sys.argv[1] + ".json").read().splitlines()[-1])
lines = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
rows = [line["feature_rows"] for line in lines if line.get("split") == "train"]
assert len(rows) == 10 and rows[0] > 0
assert abs(final["feature_rows"] - sum(rows) / len(rows)) < 0.5 * final["feature_rows"], (rows, final)
P
grep -q '"node":"node 3".*"node":"node 79"' names.json || fail "names: $(cat names.json)"
refuse "node 3" "${graph[@]}" --train --predict 'nod 3'
printf '1\n%.0s' {1..81} >long
refuse 'line 81' "${graph[@]}" --learners 2 --partition long
printf '0\n%.0s' {1..80} >zeros
refuse 'part 1 has no nodes' "${graph[@]}" --learners 2 --partition zeros
mkdir unsplit && cp graph/*.txt unsplit && sed -i 's/valid/train/' unsplit/split.txt
refuse 'nodes for validation' "$gcn" --data unsplit
{ printf '0\n%.0s' {1..60}; printf '1\n%.0s' {1..20}; } >uneven
"$gcn" --data graph --learners 2 --partition uneven --batch-size 16 --steps 1 --no-report --output-dir uneven-run 2>uneven.err || fail 'uneven'
grep -q 'an epoch reads 31 %' uneven.err || fail "an uneven partition, and not a word of it: $(cat uneven.err)"
{ printf '0\n%.0s' {1..64}; printf '1\n%.0s' {1..16}; } >untrained
refuse 'learner 1 has no nodes for training' "${graph[@]}" --learners 2 --partition untrained

echo "Debian's packages"
cat >Packages <<'P'
Package: editor
Section: editors
Depends: libc6 (>= 2.34), libtext:any | libtext-dev, missing
Recommends: spell
Description: small text editor
 Long text, which is not read: libc6 spell

Package: libc6
Section: libs
Description: shared library for text

Package: libtext
Section: libs
Depends: libc6,
 spell
Description-en: text library

Package: spell
Section: contrib/text
Recommends: editor
Description: checks text

Package: editor
Section: other
Description: listed again
P
python3 "$sources/apps/debian_graph.py" debian Packages >made.txt || fail 'debian_graph.py'
grep -q '4 packages, 5 edges, 7 words, 3 sections' made.txt || fail "debian_graph.py: $(cat made.txt)"
[ "$(tr '\n' ' ' <debian/names.txt)" = 'editor libc6 libtext spell ' ] || fail "names: $(cat debian/names.txt)"
[ "$(tr '\n' ' ' <debian/labels.txt)" = 'editors libs libs text ' ] || fail "labels: $(cat debian/labels.txt)"
[ "$(tr '\n' ',' <debian/edges.txt)" = '0 1,0 2,0 3,1 2,2 3,' ] || fail "edges: $(cat debian/edges.txt)"
"$gcn" --data debian --steps 2 --batch-size 2 --quiet --no-report --output-dir packages || fail "the packages' graph"
says 2 'no package' python3 "$sources/apps/debian_graph.py" nothing /dev/null
says 2 '^debian_graph: .*No such file' python3 "$sources/apps/debian_graph.py" nothing missing

echo 'kills'
RANDOM=${SEED:-$$}
echo "seed ${SEED:-$$}"
killed=("${small[@]}" --steps 1500 --batch-size 32 --save-every 7 --comm-timeout 20 --compress scalecom:rate=10 --compress-start 40)
"${killed[@]}" --learners 4 --quiet --output-dir unkilled || fail 'unkilled'
survived=0
# Waits until the run has saved once more than before.
saved_again() {
  local i
  for i in {1..500}; do
    [ "$(ls run/checkpoints 2>/dev/null | grep -v part | sort -t- -k2 -n | tail -1)" != "$newest" ] && return
    sleep 0.02
  done
}
for ((round = 0; survived < ${KILLS:-2} && round < 20 * ${KILLS:-2}; round++)); do
  newest=$(ls run/checkpoints 2>/dev/null | grep -v part | sort -t- -k2 -n | tail -1)
  if [ $((round % 2)) = 0 ] || [ -z "$mpirun" ]; then
    "${killed[@]}" --learners 4 --output-dir run --resume auto >/dev/null 2>run.err & pid=$!
    saved_again; sleep "0.0$((RANDOM % 90 + 10))"
    kill -KILL $pid 2>/dev/null
  else  # one process of four
    ranks 4 "${killed[@]}" --output-dir run --resume auto >/dev/null 2>run.err & pid=$!
    saved_again; sleep "0.0$((RANDOM % 90 + 10))"
    mapfile -t pids < <(mine)
    [ ${#pids[@]} = 0 ] || kill -KILL "${pids[RANDOM % ${#pids[@]}]}"
  fi
  wait $pid 2>/dev/null && { rm -rf run; continue; }  # it was faster
  for i in {1..100}; do [ -z "$(mine)" ] && break; sleep 0.1; done
  [ -z "$(mine)" ] || fail "processes are left: $(mine | tr '\n' ' ')"
  survived=$((survived + 1))
  echo "killed: $(ls run/checkpoints 2>/dev/null | tr '\n' ' ')"
done
[ $survived = "${KILLS:-2}" ] || fail "killed only $survived times"
"${killed[@]}" --learners 4 --output-dir run --resume auto --quiet 2>run.err || fail "after the kills: $(tail -1 run.err)"
cmp -s unkilled/model.safetensors run/model.safetensors || fail 'the weights differ after kills'
same_losses unkilled run 'killed'

finish
