#!/usr/bin/env bash
# Fine-tunes a ResNet-18 with torchvision's names, 1,000 classes and random weights on ten classes: --new-head, --freeze
# with one and with four learners, resume, and a language model whose embedding is frozen.
#   tests/test_program_finetune.sh build/train_resnet build/train_lm build/train_gcn [mpirun]
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") && gcn=$(realpath "$3") || exit 2
mpirun=${4:-}
. "$(dirname "$0")/program.sh"

# A weights file as torch writes it, without metadata: He's deviations, batch norms as they begin.
python3 - <<'PYTHON' || exit 2
import array, json, math, random, struct
random.seed(5)
normal = [random.gauss(0, 1) for _ in range(40961)]
tensors = {}
def add(name, shape, deviation=None, value=0.0):
    count = math.prod(shape)
    if deviation is None:
        values = [value] * count
    else:  # the same numbers from another beginning
        at = random.randrange(len(normal))
        some = array.array('f', (x * deviation for x in normal[at:] + normal[:at]))
        values = (some * (count // len(some) + 1))[:count]
    tensors[name] = ('F32', shape, array.array('f', values).tobytes())
def norm(name, channels):
    add(name + '.weight', [channels], value=1.0)
    add(name + '.bias', [channels])
    add(name + '.running_mean', [channels])
    add(name + '.running_var', [channels], value=1.0)
    tensors[name + '.num_batches_tracked'] = ('I64', [], struct.pack('<q', 0))
def conv(name, out, into, size):
    add(name + '.weight', [out, into, size, size], math.sqrt(2 / (out * size * size)))
conv('conv1', 64, 3, 7)
norm('bn1', 64)
into = 64
for stage, out in enumerate([64, 128, 256, 512], 1):
    for block in range(2):
        name = f'layer{stage}.{block}'
        conv(name + '.conv1', out, into, 3)
        norm(name + '.bn1', out)
        conv(name + '.conv2', out, out, 3)
        norm(name + '.bn2', out)
        if into != out:
            conv(name + '.downsample.0', out, into, 1)
            norm(name + '.downsample.1', out)
        into = out
add('fc.weight', [1000, 512], 0.025)
add('fc.bias', [1000], 0.025)
def save(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)
save('published.safetensors', tensors)
save('headless.safetensors', {name: x for name, x in tensors.items() if not name.startswith('fc.')})
PYTHON
cat >compare.py <<'PYTHON'
# compare.py A B REGEX: tensors whose names match are equal in both files, all others differ.
import json, re, struct, sys
def read(path):
    data = open(path, 'rb').read()
    size, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + size])
    header.pop('__metadata__', None)
    return {name: (x['shape'], data[8 + size + x['data_offsets'][0]:8 + size + x['data_offsets'][1]])
            for name, x in header.items()}
a, b = read(sys.argv[1]), read(sys.argv[2])
wrong = [name for name in a if (a[name] == b.get(name)) != bool(re.search(sys.argv[3], name))]
frozen = sum(bool(re.search(sys.argv[3], name)) for name in a)
print(f'{frozen} of {len(a)} equal')
sys.exit(f'wrong: {wrong}' if wrong or a.keys() != b.keys() or frozen == 0 else 0)
PYTHON
equal_where() { python3 "$work/compare.py" "$@" >compared 2>&1 || fail "$1 and $2: $(cat compared)"; }
falls() {  # FOLDER STEPS: the mean loss of the last third is below that of the first
  sed -n 's/.*"split":"train","loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" |
    awk '{ x[NR] = $1 } END { n = int(NR / 3); for (i = 1; i <= n; ++i) { a += x[i]; b += x[NR + 1 - i] } exit !(NR == steps && b < 0.95 * a) }' steps="$2" ||
    fail "$1: the loss does not fall: $(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | tr '\n' ' ')"
}

frozen='^(conv1|bn1|layer1)\.'
tune=("$resnet" --init published.safetensors --image-size 24 --threads 1 --lr 0.005 --print-freq 1 --no-report)

echo 'refused'
refuse '\(10, 512\).*\(1000, 512\).*--new-head' "${tune[@]}"
refuse 'init' "$resnet" --new-head
refuse 'training' "${tune[@]}" --new-head --evaluate
refuse 'training' "${tune[@]}" --freeze fc --evaluate
refuse 'freeze' "${tune[@]}" --new-head --freeze '('
refuse 'conv1.weight' "${tune[@]}" --new-head --freeze nothing-like-it
refuse 'every parameter' "${tune[@]}" --new-head --freeze .

echo 'one learner'
tune+=(--new-head --freeze "$frozen")
"${tune[@]}" --steps 60 --batch-size 16 --save-every 30 --keep 9 --deterministic --json --output-dir tuned >tuned.json 2>tuned.err || fail "tuned: $(tail -1 tuned.err)"
falls tuned 60
equal_where published.safetensors tuned/model.safetensors "$frozen"
grep -q '11.18 M.*0.16 M of them frozen' tuned.err || fail "sizes: $(cat tuned.err)"
"${tune[@]}" --batch-size 8 --dry-run --json >plan.json 2>plan.err || fail "dry run: $(tail -1 plan.err)"
[ "$(json plan.json parameters) $(json plan.json frozen)" = '11181642 157504' ] || fail "plan: $(cat plan.json)"
"$resnet" --init tuned --evaluate --data shapes --json >evaluated.json 2>evaluated.err || fail "evaluate: $(tail -1 evaluated.err)"
# A run's config.toml says new-head and freeze, which are for training.
"$resnet" --config tuned/config.toml --init tuned --evaluate --json >again.json 2>again.err || fail "evaluate by config: $(tail -1 again.err)"
[ "$(json evaluated.json valid_loss | cut -c1-6)" = "$(json again.json valid_loss | cut -c1-6)" ] ||
  fail "config.toml evaluates another network: $(json again.json valid_loss)"
[ "$(json tuned.json valid_loss | cut -c1-6)" = "$(json evaluated.json valid_loss | cut -c1-6)" ] || fail 'the saved network has another loss'
grep -aq '"mean":"0.485' tuned/model.safetensors || fail "images were not normalised as the file's layers expect"
says 0 . "$resnet" --init published.safetensors --evaluate --data shapes

echo 'resumed'
"${tune[@]}" --steps 60 --batch-size 16 --deterministic --resume tuned/checkpoints/step-30 --output-dir resumed >/dev/null 2>resumed.err || fail "resumed: $(tail -1 resumed.err)"
cmp -s tuned/model.safetensors resumed/model.safetensors || fail 'a resumed run ends with other weights'
refuse 'freeze' "${tune[@]}" --steps 62 --batch-size 16 --freeze '^conv1' --resume tuned/checkpoints/step-30
"${tune[@]}" --steps 62 --batch-size 16 --freeze '^(conv1|bn1)\.' --resume tuned/checkpoints/step-60 --resume-anyway --output-dir thawed >/dev/null 2>thawed.err ||
  fail "thawed: $(tail -1 thawed.err)"
equal_where tuned/model.safetensors thawed/model.safetensors '^(conv1|bn1)\.'

compressed=("${tune[@]}" --learners 2 --batch-size 4 --compress scalecom:rate=20 --compress-start 1 --quiet)
"${compressed[@]}" --steps 4 --save-every 4 --output-dir half >/dev/null 2>half.err || fail "half: $(tail -1 half.err)"
for other in '^conv1' '^(conv1|bn1|layer[123])\.'; do  # fewer and more frozen layers: residuals and settings begin anew
  "${compressed[@]}" --steps 6 --freeze "$other" --resume half/checkpoints/step-4 --resume-anyway --output-dir other >/dev/null 2>other.err ||
    fail "resume with $other: $(tail -1 other.err)"
  equal_where half/model.safetensors other/model.safetensors "$other"
  rm -rf other
done

echo 'a file without a last layer'
refuse 'fc.weight.*--new-head' "$resnet" --init headless.safetensors --image-size 24
refuse 'fc.weight' "$resnet" --init headless.safetensors --predict "$work/compare.py"
"${tune[@]}" --init headless.safetensors --steps 2 --batch-size 4 --output-dir headless >/dev/null 2>headless.err || fail "headless: $(tail -1 headless.err)"

echo 'four learners'
four=("${tune[@]}" --deterministic --batch-size 8 --compress scalecom:rate=20 --compress-start 2 --min-compress 100 --ledger --json)
"${four[@]}" --learners 4 --steps 30 --output-dir four >four.json 2>four.err || fail "four: $(tail -1 four.err)"
falls four 30
equal_where published.safetensors four/model.safetensors "$frozen"
grep '^{"ledger"' four/metrics.jsonl >ledger || fail 'no ledger'
grep -q '"layer4.0.conv1.weight"' ledger || fail 'layer4 is not in the ledger'
! grep -q '"layer1' ledger || fail 'frozen layers are in the ledger'
if [ -n "$mpirun" ]; then
  "${four[@]}" --learners 2 --steps 5 --output-dir threads >/dev/null 2>threads.err || fail "threads: $(tail -1 threads.err)"
  ranks 2 "${four[@]}" --steps 5 --output-dir processes >/dev/null 2>mpi.err || fail "MPI: $(tail -1 mpi.err)"
  cmp -s threads/model.safetensors processes/model.safetensors || fail 'processes and threads end with other weights'
else
  echo 'skipped: MPI (no mpirun here)'
fi

echo 'a language model'
for i in {1..120}; do echo "line $((i % 7)): the cat saw the $((i % 11)) dogs"; done >a.txt
words=("$lm" --data a.txt --emsize 24 --nhid 24 --bptt 9 --steps 20 --batch-size 4 --threads 1 --print-freq 1 --no-report --quiet)
"${words[@]}" --output-dir first >/dev/null 2>first.err || fail "first: $(tail -1 first.err)"
"${words[@]}" --init first --freeze '^encoder|bias_hh' --output-dir second >/dev/null 2>second.err || fail "second: $(tail -1 second.err)"
equal_where first/model.safetensors second/model.safetensors '^encoder|bias_hh'

echo 'neighbours only, and a graph'
"${words[@]}" --init first --freeze '^encoder' --learners 3 --peers ring --save-every 20 --output-dir peers >/dev/null 2>peers.err || fail "peers: $(tail -1 peers.err)"
equal_where first/model.safetensors peers/model.safetensors '^encoder'
"${words[@]}" --init first --freeze '^rnn' --learners 3 --peers ring --steps 22 --resume peers/checkpoints/step-20 --resume-anyway --output-dir thawed-peers \
  >/dev/null 2>peers.err || fail "thawed peers: $(tail -1 peers.err)"
equal_where peers/model.safetensors thawed-peers/model.safetensors '^rnn'
nodes=("$gcn" --data sbm:nodes=300,classes=3 --batch-size 16 --hidden 16 --steps 6 --threads 1 --learners 2 --quiet --no-report)
"${nodes[@]}" --output-dir graph >/dev/null 2>graph.err || fail "graph: $(tail -1 graph.err)"
layer=$(python3 -c 'import json, struct, sys; f = open("graph/model.safetensors", "rb"); print(sorted(n for n in json.loads(f.read(struct.unpack("<Q", f.read(8))[0])) if n.endswith(".weight"))[0])')
"${nodes[@]}" --init graph --freeze "^${layer//./\\.}" --output-dir graph2 >/dev/null 2>graph.err || fail "graph2: $(tail -1 graph.err)"
equal_where graph/model.safetensors graph2/model.safetensors "^${layer//./\\.}"
finish
