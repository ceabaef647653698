#!/usr/bin/env bash
# Learners that talk to neighbours only, as a user would start them: overlapped or not, as threads and under mpirun,
# with the same bits; resumed from checkpoints, by as many learners and by others; stopped by a signal on one rank;
# what contradicts itself is refused.
#   tests/test_program_peers.sh build/train_resnet build/train_lm [mpirun]      KILLS=10 for the long form
set -u
sources=$(cd "$(dirname "$0")/.." && pwd)
resnet=$(realpath "$1") && lm=$(realpath "$2") || exit 2
mpirun=${3:-}
. "$sources/tests/program.sh"

images=("$resnet" --image-size 8 --batch-size 4 --threads 1 --print-freq 4 --deterministic --quiet --json --keep 99)
ring=(--learners 4 --peers ring --innovation qsgd:bits=4)
"${images[@]}" --steps 12 "${ring[@]}" --output-dir ring >ring.json || fail 'ring'
"${images[@]}" --steps 12 "${ring[@]}" --overlap off --bucket-mb 0.1 --output-dir off >/dev/null || fail 'overlap off'
same_losses ring off 'exchange after backward'
cmp -s ring/model.safetensors off/model.safetensors || fail 'overlap changes the weights'
# Two neighbours get 4 bits and a scale for 1024 values each, in place of 1.5 times 32 bits for an all-reduce: 6 times less.
awk -v r="$(json ring.json ratio_wire)" 'BEGIN { exit !(r > 4.5 && r < 6) }' || fail "ratio_wire: $(json ring.json ratio_wire)"

# Learners learn, and the saved weights are those that were evaluated: the mean.
"$resnet" --image-size 16 --batch-size 16 --threads 1 --learners 4 --peers ring --innovation dyna --steps 150 --quiet --json \
  --output-dir learned >learned.json || fail 'dyna'
"$resnet" --image-size 16 --threads 1 --evaluate --init learned/model.safetensors --quiet --json >again.json || fail 'evaluate'
[ "$(json learned.json valid_acc1)" = "$(json again.json valid_acc1)" ] || fail "saved weights are not those evaluated: $(cat learned.json again.json)"
awk -v a="$(json learned.json valid_acc1)" 'BEGIN { exit !(a > 20) }' || fail "nothing was learned: $(json learned.json valid_acc1)"

awk -v e="$(json learned.json consensus_error)" 'BEGIN { exit !(e > 0 && e < 0.5) }' || fail "consensus_error: $(json learned.json consensus_error)"
grep -q '"split":"valid".*"consensus_error":' learned/metrics.jsonl || fail 'no consensus error in a validation line'
[ "$(json again.json consensus_error)" = '' ] || fail 'a consensus error without --peers'

# Learners with classes of their own: other batches than at random, and both optimizers take them.
for peers in --peers=ring ''; do
  "${images[@]}" --steps 12 --learners 4 --shard by-class ${peers:+"$peers"} --output-dir "classes$peers" >/dev/null || fail "by class $peers"
  "${images[@]}" --steps 12 --learners 4 ${peers:+"$peers"} --output-dir "random$peers" >/dev/null || fail "at random $peers"
  [ "$(losses "classes$peers")" != "$(losses "random$peers")" ] || fail "--shard by-class changes nothing $peers"
done

# A language model, with clipping, on the program's own sources.
"$lm" --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --threads 1 --learners 3 --peers ring --innovation dyna:bits=2 \
  --clip-grad-norm 1 --steps 60 --quiet --json --output-dir lm >lm.json || fail 'train_lm'
awk -v l="$(json lm.json train_loss)" 'BEGIN { exit !(l < 4.4) }' || fail "train_lm has learned nothing: $(json lm.json train_loss)"

# ------------------------------------------------------------------------------------- checkpoints
# Three epochs, resumed within the second: an evaluation at the mean changes nothing for the learners.
small=(--data "$PWD/pictures" --augment none --image-size 8)
mkdir -p pictures/{train,val}/{dark,light}
python3 - <<'PY'
import pathlib, struct, zlib
def png(path, value):
    raw = b"".join(b"\0" + bytes([(value + 7 * x + 3 * y) % 256 for x in range(8) for _ in range(3)]) for y in range(8))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))
for split, count in ("train", 32), ("val", 8):
    for name, base in ("dark", 0), ("light", 128):
        for i in range(count):
            png(pathlib.Path("pictures", split, name, f"{i}.png"), base + i)
PY
whole=("${images[@]}" "${small[@]}" --arch resnet20 --epochs 3 --save-every 2 "${ring[@]/qsgd:bits=4/dyna}")
"${whole[@]}" --output-dir whole >whole.json || fail 'whole'
step=6  # of twelve
from() { rm -rf "$1"; cp -r whole "$1" && find "$1/checkpoints" -mindepth 1 -maxdepth 1 ! -name "step-$step" -exec rm -r {} +; }
from on
"${whole[@]}" --output-dir on --resume auto >on.json 2>on.err || fail "resume: $(tail -1 on.err)"
same_losses whole on 'resumed'
cmp -s whole/model.safetensors on/model.safetensors || fail 'a resumed run ends with other weights'
for r in 0 1 2 3; do
  cmp -s "whole/checkpoints/step-12/rank-$r.safetensors" "on/checkpoints/step-12/rank-$r.safetensors" || fail "rank $r has another state"
done
# The model of a checkpoint is the mean of the learners' weights.
python3 - whole/checkpoints/step-$step <<'PY' || fail 'a checkpoint holds another model than the mean'
import json, pathlib, struct, sys
def tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, about in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and about["dtype"] == "F32":
            begin, end = (8 + size + x for x in about["data_offsets"])
            yield name, struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
folder = pathlib.Path(sys.argv[1])
ranks = [dict(tensors(folder / f"rank-{r}.safetensors")) for r in range(4)]
differ = 0
for name, found in tensors(folder / "model.safetensors"):
    if f"exchange.weights.{name}" not in ranks[0]:
        continue
    for i, values in enumerate(zip(*(r[f"exchange.weights.{name}"] for r in ranks))):
        differ += len(set(values)) > 1
        assert abs(found[i] - sum(values) / 4) < 1e-6, (name, i, found[i], values)
assert differ > 100, differ
PY

# Other learners, another graph or another code begin anew from the mean: they lose nothing of what was learned.
from less
"${whole[@]}" --learners 2 --output-dir less --resume auto >less.json 2>less.err || fail "with two learners: $(tail -1 less.err)"
[ "$(json less.json status)" = '"done"' ] || fail "with two learners: $(cat less.json)"
for flags in '--peers complete' '--innovation none' '--peer-rule gossip' '--shard by-class'; do
  from other
  # shellcheck disable=SC2086
  says 2 "$(sed 's/^--\([a-z-]*\) .*/\1/' <<<"$flags")" "${whole[@]}" $flags --output-dir other --resume auto
  # shellcheck disable=SC2086
  "${whole[@]}" $flags --output-dir other --resume auto --resume-anyway >other.json 2>other.err || fail "$flags: $(tail -1 other.err)"
done
from other
plain=("${images[@]}" "${small[@]}" --arch resnet20 --epochs 3 --save-every 2 --learners 4)
says 2 'innovation\|peers' "${plain[@]}" --output-dir other --resume auto
from other
"${whole[@]}" --optimizer adamw --output-dir other --resume auto --resume-anyway >/dev/null 2>other.err || fail "another rule: $(tail -1 other.err)"
# A file may describe another graph than when the checkpoint was saved.
printf '0: 1 3\n1: 0 2\n2: 1 3\n3: 0 2\n' >graph.txt
"${images[@]}" --steps 4 --save-every 4 --learners 4 --peers graph.txt --output-dir edited >/dev/null || fail 'a graph from a file'
printf '0: 1 2\n1: 0 3\n2: 0 3\n3: 1 2\n' >graph.txt
"${images[@]}" --steps 8 --resync 2 --learners 4 --peers graph.txt --output-dir edited --resume auto >/dev/null 2>edited.err ||
  fail "an edited graph: $(tail -1 edited.err)"
# Tied weights have two names in the file, and are one tensor.
tied=("$lm" --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --threads 1 --learners 4 --peers ring --innovation dyna --tied
  --save-every 10 --quiet --output-dir tied)
"${tied[@]}" --steps 10 >/dev/null || fail 'tied'
"${tied[@]}" --steps 20 --resume auto >/dev/null 2>tied.err || fail "tied, resumed: $(tail -1 tied.err)"

# ------------------------------------------------------------------------------------- rules, trouble
for flags in '--peer-rule gossip' '--peer-mixing 0.3'; do
  # shellcheck disable=SC2086
  "${images[@]}" --steps 12 "${ring[@]}" $flags --output-dir "r$flags" >/dev/null || fail "$flags"
  [ "$(losses "r$flags")" != "$(losses ring)" ] || fail "$flags changes nothing"
done
for flags in '--lr 1e9 --print-freq 1000' '--lr 1e6 --max-skipped 2 --print-freq 5'; do
  # shellcheck disable=SC2086
  "${images[@]}" --steps 200 "${ring[@]}" $flags --output-dir "d$flags" >diverged.json 2>diverged.err; code=$?
  [ $code = 3 ] && [ "$(json diverged.json status)" = '"diverged"' ] || fail "$flags: exit code $code: $(tail -1 diverged.err)"
done
"${images[@]}" --learners 4 --peers ring --innovation dyna --dry-run >dry.json || fail 'dry run'
awk -v b="$(json dry.json exchange_bytes_per_step)" 'BEGIN { exit !(b > 30000 && b < 60000) }' || fail "dry run: $(cat dry.json)"

# A signal reaches all, some steps later where the graph is long.
long=("$resnet" --image-size 8 --batch-size 4 --threads 1 --print-freq 4 --deterministic --json --steps 400 --save-every 0
  --learners 6 --peers ring --output-dir long)
"${long[@]}" >long.json 2>long.err & pid=$!
wait_for long.err 'step [0-9]*/'
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] || fail "a signal: exit code $code: $(tail -3 long.err)"
"${long[@]}" --resume auto >long.json 2>long.err || fail "after a signal: $(tail -1 long.err)"
# … also while the learning rate is zero and nothing else is exchanged.
"${long[@]/long/still}" --steps 1000000 --lr 0 >still.json 2>still.err & pid=$!
wait_for still.err 'step [0-9]*/'
kill -TERM $pid; wait $pid; code=$?
[ $code = 75 ] || fail "a signal without a learning rate: exit code $code: $(tail -3 still.err)"

# ------------------------------------------------------------------------------------------- mpirun
if [ -n "$mpirun" ]; then
  ranks 4 "${images[@]}" --steps 12 --peers ring --innovation qsgd:bits=4 --output-dir mpi >/dev/null || fail 'mpirun'
  same_losses ring mpi 'processes'
  cmp -s ring/model.safetensors mpi/model.safetensors || fail 'processes end with other weights than threads'

  # pid_of RANK FOLDER: the process of a rank that trains in this folder.
  pid_of() {
    local pid
    for pid in $(pgrep -f "^$resnet .*--output-dir $2\$"); do
      grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$pid/environ" 2>/dev/null && echo "$pid"
    done
  }
  # A rank that stands still for four seconds delays its neighbours, and through them the others; nobody gives up.
  calm=("${images[@]}" --steps 300 --save-every 0 --peers ring --innovation qsgd:bits=4 --comm-timeout 60)
  ranks 4 "${calm[@]}" --output-dir calm >/dev/null || fail 'calm'
  ranks 4 "${calm[@]}" --output-dir halted >/dev/null 2>halted.err & launcher=$!
  wait_for halted/metrics.jsonl '"step":4,'
  pid=$(pid_of 2 halted)
  if [ -n "$pid" ]; then kill -STOP "$pid"; sleep 4; kill -CONT "$pid"; else fail 'no rank 2 to halt'; fi
  wait $launcher; code=$?
  [ $code = 0 ] || fail "a rank stood still: exit code $code: $(tail -3 halted.err)"
  same_losses calm halted 'a rank stood still'
  # A rank that hangs is named by a neighbour, in an exchange, or while losses are averaged.
  ranks 4 "${calm[@]}" --comm-timeout 5 --steps 100000 --output-dir hung >/dev/null 2>hung.err & launcher=$!
  wait_for hung/metrics.jsonl '"step":4,'
  kill -STOP "$(pid_of 1 hung)"
  wait $launcher && fail 'hung: exit code 0'
  grep -Eq 'rank [02] of 4, (exchange|all_gather) of .*rank 1' hung.err || fail "hung: rank 1 is not named: $(head -c 800 hung.err)"
  # One that is killed ends all of them within fifteen seconds, and is named.
  for ((i = 0; i < ${KILLS:-2}; i++)); do
    ranks 4 "${calm[@]}" --steps 100000 --output-dir "killed$i" >/dev/null 2>"killed$i.err" & launcher=$!
    wait_for "killed$i/metrics.jsonl" '"step":4,'
    victim=$((RANDOM % 4))
    kill -KILL "$(pid_of $victim "killed$i")"
    for _ in {1..150}; do kill -0 $launcher 2>/dev/null || break; sleep 0.1; done
    kill -0 $launcher 2>/dev/null && { fail "killed: still there after 15 s"; kill -KILL $launcher; }
    wait $launcher && fail 'killed: exit code 0'
    grep -q "rank $victim\b" "killed$i.err" || fail "killed: rank $victim is not named: $(tail -5 "killed$i.err")"
  done
else
  echo 'skipped: processes (no mpirun here)'
fi

# --------------------------------------------------------------------------------------- what is refused
refuse 'several learners' "${images[@]}" --steps 2 --peers ring
refuse 'several learners' "${images[@]}" --steps 2 --shard by-class
refuse '1.5' "${images[@]}" --steps 2 --learners 4 --peers ring --peer-mixing 1.5
refuse 'rings' "${images[@]}" --steps 2 --learners 4 --peers rings
refuse 'torus:2x3' "${images[@]}" --steps 2 --learners 4 --peers torus:2x3
printf '0: 1\n1: 0\n2: 3\n3: 2\n' >pairs
refuse 'cannot reach' "${images[@]}" --steps 2 --learners 4 --peers "$PWD/pairs"
refuse 'compress' "${images[@]}" --steps 2 --learners 4 --peers ring --compress topk
refuse 'innovation' "${images[@]}" --steps 2 --learners 4 --innovation dyna
refuse 'qsdg' "${images[@]}" --steps 2 --learners 4 --peers ring --innovation qsdg --dry-run
[ ! -e refused ] || fail 'a folder left behind'
refuse 'headroom' "${images[@]}" --learners 4 --peers ring --headroom 1
refuse 'qsgd' "${images[@]}" --steps 2 --learners 4 --peers ring --innovation qsdg
finish
