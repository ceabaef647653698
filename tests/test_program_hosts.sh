#!/usr/bin/env bash
# Exchange in two levels (--hosts): threads and processes give the same weights, another network changes no bit, resuming,
# what is reported, bad input.
#   tests/test_program_hosts.sh build/train_resnet build/train_lm [mpirun]
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$(dirname "$0")/program.sh"

images=(--image-size 8 --steps 6 --threads 1 --batch-size 4 --print-freq 1 --deterministic --json)
levels=("${images[@]}" --hosts 2 --compress scalecom:rate=50 --compress-start 2)
two=("${levels[@]}" --learners 4)

"$resnet" "${two[@]}" --save-every 3 --keep 9 --ledger --output-dir two >two.json 2>two.err || fail "two hosts: $(tail -1 two.err)"
grep -q 'each of 2 hosts' two.err || fail "nothing is said: $(cat two.err)"
grep -q '^within hosts  *[1-9]' two.err || fail "the ledger: $(tail -40 two.err)"
"$resnet" "${two[@]}" --quiet --hosts auto --net 'hosts=2;host=10gbit,20us;between=200mbit,1ms' --output-dir net >net.json || fail 'auto, by the network model'
cmp -s two/model.safetensors net/model.safetensors || fail 'a network model changes the weights'
"$resnet" "${two[@]}" --quiet --net 'host=10gbit;between=200mbit' --output-dir net2 >/dev/null || fail 'a network model without its number of hosts'
# Bytes between hosts: with two, a dense step sends all gradients once, 270,852 values with their padding.
python3 - <<'CHECK' || fail "bytes: $(cat two.json)"
import json
two, net = json.load(open("two.json")), json.load(open("net.json"))
assert two["hosts"] == 2 and two["bytes_between"] == net["bytes_between"], two
steps = [x for x in map(json.loads, open("two/metrics.jsonl")) if x.get("split") == "train"]
assert sum(x["bytes_between"] for x in steps) == two["bytes_between"]
assert abs(steps[0]["bytes_between"] / (270852 * 4) - 1) < 1e-3, steps[0]
assert two["bytes_dense"] == 6 * 269722 * 4, two
assert abs(two["bytes_step_mean"] * 4 / sum(x["bytes_between"] for x in steps[2:]) - 1) < 0.2, two
assert 45 < two["ratio_layers"] <= 50.5 and 25 < two["ratio_wire"] < 50, two
assert abs(steps[-1]["ratio"] - 269722 * 4 / steps[-1]["bytes_between"]) < 1e-6, steps[-1]
assert two["bytes_sent"] > two["bytes_between"] * 3, two
summary = [x for x in map(json.loads, open("two/metrics.jsonl")) if "summary" in x][-1]
assert summary["hosts"] == 2 and summary["bytes_between"] == two["bytes_between"], summary
CHECK
"$resnet" "${images[@]}" --quiet --learners 4 --output-dir flat >flat.json || fail 'one level'
[ -z "$(json flat.json hosts)" ] || fail "hosts of one level: $(cat flat.json)"
"$resnet" "${images[@]}" --quiet --learners 4 --hosts 3 --output-dir dense3 >dense3.json || fail 'dense, three hosts of four learners'
python3 - <<'CHECK' || fail 'dense sums in two levels are others'
import json
a, b = ([json.loads(line)["loss"] for line in open(f"{run}/metrics.jsonl") if '"split":"train"' in line] for run in ("flat", "dense3"))
dense3 = json.load(open("dense3.json"))
assert dense3["hosts"] == 3 and 0 < dense3["bytes_between"] < json.load(open("flat.json"))["bytes_sent"], dense3
assert len(a) == len(b) == 6 and all(abs(x / y - 1) < 1e-5 for x, y in zip(a[:4], b)), (a, b)  # then rounding has grown
CHECK

"${resnet%/*}/report" two --watch --once >watch.txt 2>&1 || fail "watch: $(tail -1 watch.txt)"
grep -q 'ratio 2\.[6-9]' watch.txt || fail "the ratio that watch shows: $(grep ratio watch.txt)"

echo 'headroom'
"$resnet" --image-size 8 --threads 1 --batch-size 4 --learners 4 --hosts 2 --quiet --json --headroom 2 >headroom.json 2>headroom.err || fail "headroom: $(tail -1 headroom.err)"
python3 - <<'CHECK' || fail "headroom: $(cat headroom.json)"
import json
h = json.load(open("headroom.json"))
sent = {row["exchange"]: row["sent_bytes"] for row in h["measured"]}
assert h["hosts"] == 2 and h["learners"] == 4, h
assert abs(sent["dense"] / (270852 * 4) - 1) < 1e-2 and abs(sent["bf16"] / sent["dense"] - 0.5) < 0.02, sent  # between hosts only
dense = {(row["net"], row["hosts"]): row["step_s"] for row in h["model"] if row["exchange"] == "dense"}
assert dense["100mbit,1ms", 2] - dense["10gbit,50us", 2] > 0.05, dense  # 1 MB takes 87 ms and 1 ms
assert dense["100mbit,1ms", 8] > dense["100mbit,1ms", 2], dense
CHECK

echo 'resumed'
"$resnet" "${two[@]}" --quiet --resume two/checkpoints/step-3 --output-dir resumed >/dev/null || fail 'resumed'
cmp -s two/model.safetensors resumed/model.safetensors || fail 'a resumed run ends with other weights'
"$resnet" "${two[@]}" --hosts 4 --resume two/checkpoints/step-3 --output-dir four >/dev/null 2>four.err || fail "other hosts: $(tail -1 four.err)"
grep -q 'one level.*each learner is a host' four.err || fail "nothing is said of one learner on each host: $(cat four.err)"
"$resnet" "${two[@]}" --quiet --hosts 4 --output-dir each >/dev/null && "$resnet" "${levels[@]/--hosts/--seed}" --quiet --seed 1 --learners 4 --output-dir none >/dev/null &&
  cmp -s each/model.safetensors none/model.safetensors || fail 'hosts of one learner change the weights'
grep -q 'changed: hosts' four.err || fail "nothing is said of other hosts: $(cat four.err)"

if [ -n "$mpirun" ]; then
  ranks 4 "$resnet" "${levels[@]}" --quiet --output-dir mpi >mpi.json 2>mpi.err || fail "MPI: $(tail -3 mpi.err)"
  cmp -s two/model.safetensors mpi/model.safetensors || fail 'processes and threads end with other weights'
  [ "$(json mpi.json bytes_between)" = "$(json two.json bytes_between)" ] || fail "bytes of processes: $(cat mpi.json)"
  ranks 2 "$resnet" "${images[@]}" --hosts auto --output-dir one >/dev/null 2>one.err || fail "auto: $(tail -3 one.err)"
  grep -q 'one level.*on one host' one.err || fail "nothing is said of one host: $(cat one.err)"
else
  echo 'skipped: MPI (no mpirun here)'
fi
"$lm" --emsize 16 --nhid 16 --bptt 8 --steps 4 --batch-size 2 --threads 1 --learners 4 --hosts 2 --compress topk --compress-start 1 --quiet \
  --clip-grad-norm 0.1 --output-dir lm >/dev/null || fail 'a language model'

echo 'refused'
refuse '--hosts' "$resnet" --hosts 2
refuse '--hosts' "$resnet" --learners 2 --hosts 0
refuse '--hosts 2x' "$resnet" --learners 2 --hosts 2x
refuse '--hosts 3.* 2,' "$resnet" --learners 2 --hosts 3
refuse '--hosts.*topagg' "$resnet" --arch cnn --learners 4 --hosts 2 --compress topagg --dp-unit learner --lr 0.1
refuse '--hosts.*plan' "$resnet" --learners 4 --hosts 2 --compress topk --plan two/run.json
refuse '--hosts 2.*learner 1 .*expected auto' "$resnet" "${images[@]}" --learners 3 --hosts 2 --net 'hosts=3;between=100mbit'
refuse '--hosts 2.*expected auto' "$resnet" "${images[@]}" --learners 4 --hosts 2 --net 100mbit
HEDDLE_HOSTS=2 says 0 . "$resnet" "${images[@]}" --steps 1 --output-dir alone
refuse '--hosts.*lgreco' "$resnet" --learners 4 --hosts 2 --compress topk --layerwise lgreco
refuse '--hosts.*auto' "$resnet" --learners 4 --hosts 2 --compress auto
refuse '--hosts.*shadow' "$resnet" --learners 4 --hosts 2 --compress topk --shadow 5
refuse '--peers' "$resnet" --learners 4 --hosts 2 --peers ring
refuse 'number of hosts' "$resnet" --learners 4 --net 'host=1gbit;between=1mbit'
refuse '--net.*at most 2 hosts' "$resnet" --learners 2 --net 'hosts=3;between=1mbit'
refuse '--headroom-net' "$resnet" --learners 2 --headroom 1 --headroom-net 'hosts=2;between=1mbit'
finish
