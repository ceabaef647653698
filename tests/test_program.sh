#!/usr/bin/env bash
# Runs train_resnet as a user would: exit codes and one-line errors for bad input, and runs that must
# repeat bit for bit.
#   tests/test_program.sh build/train_resnet
set -u
program=$(realpath "$1") || exit 2
. "$(dirname "$0")/program.sh"
export OMP_NUM_THREADS=2
png=iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAALUlEQVR42u3NMQkAAAzEwFdS/1JeVjV0LBxkDFw6c+q4NwAAAAAAAAAAAOALsH2eED02ziBjAAAAAElFTkSuQmCC
slope_png=iVBORw0KGgoAAAANSUhEUgAAABQAAAAOCAIAAACgpqunAAAAOElEQVR42mNkYGDgRUEnULkWeGRZmIUYmBnIRENX8wlUIQtULj7ZoehnKsQzCSGEJjsQfual3GYASV4K/7++4a4AAAAASUVORK5CYII=
huge_png=iVBORw0KGgoAAAANSUhEUgAA6mAAAOpgCAIAAAAPsOIVAAAAAElEQVQ1rwYeAAAAAElFTkSuQmCC
empty_png=iVBORw0KGgoAAAANSUhEUgAAAAAAAAAACAIAAAC06etFAAAAAElEQVQ1rwYeAAAAAElFTkSuQmCC

bad() { refuse "$1" "$program" "${@:2}"; }  # PATTERN FLAG…
# train FOLDER FLAG…: a tiny run that must succeed.
train() {
  local folder=$1; shift
  "$program" --data cifar --batch-size 16 --steps 5 --deterministic --quiet --output-dir "$folder" "$@" ||
    fail "exit code $?: $*"
}
# ------------------------------------------------------------------------------------ data sets
# Pixels are bytes of the program: any bytes do, if they are the same in every run of this test.
cifar_file() {  # FILE RECORDS SEED
  local i
  for ((i = 0; i < $2; i++)); do
    printf "\\x0$((i % 10))"
    tail -c +$(((i * 7 + $3) * 977 + 1)) "$program" | head -c 3072
  done >"$1"
}
mkdir cifar
for i in 1 2 3 4 5; do cifar_file cifar/data_batch_$i.bin 10 $((i * 100)); done 2>/dev/null
cifar_file cifar/test_batch.bin 20 900 2>/dev/null
printf 'a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n' >cifar/batches.meta.txt
variant() { rm -rf "$1" && cp -r cifar "$1"; }
base64 -d <<<"$png" >good.png
base64 -d <<<"$slope_png" >slope.png
base64 -d <<<"$huge_png" >huge.png
base64 -d <<<"$empty_png" >empty.png
head -c 60 good.png >cut.png
echo 'not an image' >text.png
mkdir -p folder/{train,val}/{cat,dog}
for d in folder/*/*; do cp good.png "$d/1.png"; cp good.png "$d/2.png"; done

# ---------------------------------------------------------------------------- flags and values
bad '--batch-size' --batchsize 4
bad '--batch-size' --batch-size 0
bad '--lr: ' --lr nan
bad '--lr: ' --lr -1
bad '--epochs: ' --epochs -1
bad '--label-smoothing: ' --label-smoothing 1
bad '--image-size: ' --image-size 0
bad '--arch: .*resnet20' --arch resnet21
bad " 'train'" train
bad '--predict' --predict
bad '--init' --predict good.png
"$program" -h | grep -q -e '--batch-size' || fail '-h'
bad 'nowhere' --data nowhere
bad 'good.png' --data good.png
bad 'none.toml' --config none.toml
echo 'batchsize = 4' >bad.toml
bad 'bad.toml:1: .*batch-size' --config bad.toml
echo 'lr = "fast"' >bad.toml
bad 'bad.toml:1: lr' --config bad.toml
bad '--device' --device tpu
if ! "$program" --device cuda --dry-run >/dev/null 2>&1; then bad 'cuda' --device cuda; fi
bad '--accumulate' --data cifar --accumulate 1000
HEDDLE_LR=nan bad 'HEDDLE_LR' --steps 1

# ----------------------------------------------------------------------------------------- data
variant c && rm c/data_batch_3.bin && bad 'data_batch_3.bin' --data c
variant c && truncate -s -5 c/data_batch_2.bin && bad 'data_batch_2.bin.* 27657 of 30725' --data c
variant c && printf x >>c/test_batch.bin && bad 'test_batch.bin.* 61460 of 61461' --data c
variant c && : >c/data_batch_1.bin && bad 'data_batch_1.bin' --data c
variant c && printf '\x0a' | dd of=c/data_batch_4.bin bs=1 seek=3073 conv=notrunc 2>/dev/null &&
  bad 'data_batch_4.bin.* 3073.* 10' --data c
mkdir none && bad 'none' --data none
small=(--arch resnet20 --image-size 32 --batch-size 2 --steps 2)
folder_case() {  # PATTERN, then a command that spoils the folder f
  local pattern=$1; shift
  rm -rf f && cp -r folder f && "$@" && bad "$pattern" --data f "${small[@]}"
}
folder_case 'f/train' rm -r f/train/cat f/train/dog
folder_case 'dog' rm f/train/dog/1.png f/train/dog/2.png
folder_case 'dog/2.png' cp text.png f/train/dog/2.png
folder_case 'dog/2.png' cp empty.png f/train/dog/2.png
folder_case 'dog/2.png' cp huge.png f/train/dog/2.png
folder_case 'dog/2.png' cp cut.png f/train/dog/2.png
folder_case '[0-9].png' cp cut.png f/val/cat/1.png

# --------------------------------------------------------------------- runs that repeat exactly
train a --json >a.json
for key in status epoch step train_loss valid_loss valid_acc1 valid_acc5 samples_per_s wall_s \
    first_step_s peak_rss_bytes world_size; do
  [ -n "$(json a.json $key)" ] || fail "the JSON object has no $key: $(cat a.json)"
done
[ "$(wc -l <a.json)" = 1 ] || fail "stdout is more than the JSON object: $(cat a.json)"
[ "$(json a.json step)" = 5 ] || fail "5 steps were asked for: $(cat a.json)"
for file in config.toml run.json metrics.jsonl model.safetensors; do
  [ -s "a/$file" ] || fail "a/$file is missing"
done
[ "$(losses a | wc -l)" -ge 6 ] || fail "expected 5 training steps and a validation in the metrics"
train b && same_losses a b 'same flags, another process'
cmp -s a/model.safetensors b/model.safetensors || fail 'the weights of two equal runs differ'
for workers in 0 3; do train w$workers --workers $workers && same_losses a w$workers workers; done
"$program" --config a/config.toml --output-dir replay --quiet >stdout || fail 'the replay failed'
same_losses a replay 'config.toml replayed'
train seed --seed 2
[ "$(losses a)" != "$(losses seed)" ] || fail 'another seed gives the same losses'
"$program" --data cifar --steps 5 --batch-size 16 --lr 0.05 --no-nesterov --dump-config >dumped.toml ||
  fail '--dump-config failed'
"$program" --config dumped.toml --dump-config | sed 's/  #.*//' >again.toml
[ "$(sed 's/  #.*//' dumped.toml)" = "$(cat again.toml)" ] || fail 'a dumped configuration changes'
"$program" --learners 2 --device cuda --comm nccl --compress scalecom --dump-config >elsewhere.toml || fail '--dump-config for another machine'
grep -q '^bucket-mb = 25 ' elsewhere.toml || fail "buckets on a GPU: $(grep bucket-mb elsewhere.toml)"
train flags --lr 0.05 --no-nesterov
"$program" --config dumped.toml --output-dir dumped --quiet
same_losses flags dumped 'dump-config replayed'
train accumulated --accumulate 3 --steps 1 --lr-scheduler cosine --clip-grad-norm 1
"$program" --steps 2 --batch-size 8 --print-freq 1 --output-dir shapes 2>narration >stdout ||
  fail 'the embedded data set failed'
grep -q 'step 2/2' narration || fail "no progress line: $(cat narration)"
grep -q $'\r' narration && fail 'a progress bar in a file'
[ -s stdout ] && fail 'stdout is not empty without --json'

# ----------------------------------------------------------------------- weights and predictions
"$program" --data cifar --batch-size 16 --evaluate --init a --quiet --json >e.json || fail '--evaluate failed'
for key in valid_loss valid_acc1 valid_acc5; do
  [ "$(json a.json $key)" = "$(json e.json $key)" ] ||
    fail "$key after loading: $(json e.json $key) instead of $(json a.json $key)"
done
"$program" --data shapes --batch-size 16 --evaluate --init a >/dev/null 2>other || fail '--evaluate on other data'
grep -q '/a .*(.*, …).* shapes (' other || fail "other classes: $(cat other)"
bad 'other classes .*--data' --batch-size 16 --evaluate --init a
"$program" --batch-size 16 --evaluate --dry-run >planned 2>&1 && grep -q parameters planned || fail "--evaluate --dry-run: $(tail -1 planned)"
"$program" --batch-size 16 --evaluate >/dev/null 2>untrained || fail '--evaluate without weights'
grep -q -e '--init' untrained || fail "untrained weights: $(cat untrained)"
[ "$("$program" --init a --predict good.png good.png --quiet | grep -c '%')" = 10 ] ||
  fail '--predict: expected five classes for each of two images'
train predicted --train --predict good.png >predicted.txt
[ "$(grep -c '%' predicted.txt)" = 5 ] || fail '--predict after training'
"$program" --init a --predict good.png --quiet --json | grep -q '"predictions":\[{"image":"good.png"' ||
  fail '--predict --json'
# A picture gives the same loss by --evaluate, in the folder of its class, as by --predict.
for class in a b c d e f g h i j; do mkdir -p alone/train/$class; done
printf 'PK\x03\x04%100s' >pickle.pth
for size in 16 32; do
  "$program" --init a --image-size $size --predict slope.png --quiet --json >p.json || fail "--predict, $size"
  best=$(sed 's/.*"best":\[{"class":"\([^"]*\)".*/\1/' p.json) && rm -rf alone/val && mkdir -p "alone/val/$best" &&
    cp slope.png "alone/val/$best"
  "$program" --init a --image-size $size --data alone --evaluate --quiet --json >e.json || fail "--evaluate, $size"
  sed 's/.*"best":\[{"class":"[^"]*","probability":\([^}]*\)}.*/\1/' p.json |
    awk -v loss="$(json e.json valid_loss)" '{ d = loss + log($1); exit !(d * d < 1e-10) }' ||
    fail "the loss of one picture: --evaluate $(json e.json valid_loss), --predict $(cat p.json)"
done
bad 'pickle.pth.*PyTorch' --init pickle.pth --predict good.png
bad '^train_resnet: --head' --head linear --predict good.png
for bad in text cut huge empty; do bad "$bad.png" --init a --predict $bad.png; done
bad 'none.png' --init a --predict none.png
bad 'fc.weight.*(2, 64).*(10, 64)' --init a --data folder "${small[@]}"
bad 'layer[1-3]\.' --init a --data cifar --arch resnet32
bad 'none.safetensors' --init none.safetensors
weights=a/model.safetensors
head -c 4 $weights >w.safetensors && bad 'w.safetensors' --init w.safetensors
head -c 5000 $weights >w.safetensors && bad 'w.safetensors' --init w.safetensors
{ printf '\xff\xff\xff\xff\xff\xff\xff\x7f'; tail -c +9 $weights; } >w.safetensors
bad 'w.safetensors' --init w.safetensors
made() {  # HEADER BYTES: a safetensors file with this header and that many zero bytes
  printf "\\x$(printf %02x $((${#1} % 256)))\\x$(printf %02x $((${#1} / 256)))\0\0\0\0\0\0%s" "$1"
  head -c "$2" /dev/zero
}
made '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}' 8 >w.safetensors
bad 'w.safetensors' --init w.safetensors
made '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,80]}}' 8 >w.safetensors
bad 'w.safetensors' --init w.safetensors
made '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' 8 >w.safetensors
bad 'fc.weight' --init w.safetensors --data cifar

# ---------------------------------------------------------------------------------- the machine
mkdir full && touch full/file
"$program" --steps 1 --data cifar --output-dir full --quiet 2>stderr
[ $? = 2 ] && grep -q ' full' stderr || fail "a folder in use was taken: $(cat stderr)"
"$program" --steps 1 --data cifar --output-dir good.png/run --quiet 2>stderr
[ $? = 1 ] && [ "$(wc -l <stderr)" = 1 ] || fail "an impossible folder: $(cat stderr)"
"$program" --steps 1 --data cifar --output-dir /proc/run --quiet 2>stderr
[ $? = 1 ] && [ "$(wc -l <stderr)" = 1 ] || fail "an unwritable folder: $(cat stderr)"
if [ -w /dev/full ]; then
  "$program" --dump-config >/dev/full 2>stderr
  [ $? = 1 ] && [ "$(wc -l <stderr)" = 1 ] || fail "stdout on a full disk: $(cat stderr)"
fi
mkdir disk
if mount -t tmpfs -o size=256k tmpfs disk 2>/dev/null; then
  "$program" --steps 1 --data cifar --batch-size 4 --output-dir disk/run --quiet 2>stderr
  [ $? = 1 ] && [ "$(wc -l <stderr)" = 1 ] && grep -q 'No space left' stderr ||
    fail "a full disk: $(cat stderr)"
  [ -z "$(find disk -name '*.safetensors*')" ] || fail "half a file on the full disk: $(find disk)"
else
  echo 'skipped: a full disk (only root can mount a small one)'
fi
"$program" --data cifar --batch-size 16 --epochs 3 --lr 1e9 --lr-scheduler cosine --quiet --json \
  --output-dir diverged >d.json 2>stderr
[ $? = 3 ] && [ "$(json d.json status)" = '"diverged"' ] || fail "divergence: $(cat d.json stderr)"
[ -e diverged/model.safetensors ] && fail 'weights of a diverged run'
grep -q 'nan.*weight' stderr || fail "no layer is named: $(cat stderr)"
"$program" --data cifar --batch-size 16 --epochs 3 --lr 1e9 --lr-scheduler cosine --lr-warmup-epochs 1 --save-every 1 \
  --max-loss 100 --quiet --json --output-dir limited >d.json 2>stderr
[ $? = 3 ] && grep -q 'loss.* [0-9]' stderr || fail "--max-loss: $(cat d.json stderr)"
grep -q 'limited/checkpoints/step-[1-9]' stderr || fail "no last checkpoint: $(cat stderr)"

"$program" --help | grep -q 'default: 0.9' || fail '--help'
"$program" --version | grep -q '^heddle [0-9]' || fail '--version'
"$program" --man >page.1 || fail '--man'
[ "$(head -c 18 page.1)" = '.TH TRAIN_RESNET 1' ] || fail "--man: $(head -1 page.1)"
for part in NAME SYNOPSIS OPTIONS ENVIRONMENT FILES 'EXIT STATUS'; do grep -qx ".SH $part" page.1 || fail "--man: no $part"; done
# Every flag that --help knows, in its order, with the same words.
"$program" --help | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p' >flags.help
sed -n 's/^\\fB\(.*\)\\fR.*/\1/p' page.1 | sed 's/\\fR.*//; s/\\-/-/g' | grep ^-- >flags.man
[ "$(wc -l <flags.man)" -gt 60 ] && cmp flags.help flags.man || fail "flags of --help and --man: $(diff flags.help flags.man)"
"$program" --help | tr -s ' \n' ' ' >help.flat
grep -A1 '^.fB' page.1 | grep -v '^--$\|^.fB' | sed 's/\\-/-/g; s/^\\&//; s/\\e/\\/g' | head -60 | while IFS= read -r line; do
  grep -qF -- "$line" help.flat || echo "not in --help: $line"
done >other.words
[ ! -s other.words ] || fail "$(cat other.words)"
# Completion of the same flags, --no-… of switches, and choices.
"$program" --completion bash >complete.bash || fail '--completion bash'
complete_words() {  # WORD…, of which the last is completed
  bash -c '. ./complete.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _train_resnet; printf "%s\n" "${COMPREPLY[@]}"' - train_resnet "$@"
}
complete_words -- >flags.bash
grep -v ^--no- flags.bash | cmp - flags.help || fail 'completion: flags'
grep -qx -e --no-nesterov flags.bash || fail 'completion: --no-nesterov'
[ "$(complete_words --lr 0.1 --prec)" = --precision ] || fail "completion: --prec gives $(complete_words --prec)"
for words in '--precision b' '--precision = b'; do
  # shellcheck disable=SC2086
  [ "$(complete_words $words)" = bf16 ] || fail "completion: $words gives $(complete_words $words)"
done
[ "$(complete_words --compress scal)" = scalecom ] || fail "completion: --compress scal gives $(complete_words --compress scal)"
"$program" --help | grep -x '[A-Z].*:' | sort | uniq -d | grep . && fail '--help has a group twice'
[ -z "$(complete_words --batch-size -)" ] || fail 'completion: a flag instead of a number'
if command -v zsh >/dev/null; then
  "$program" --completion zsh >_train_resnet
  # A terminal of its own: _arguments works only while keys are read.
  zsh -f -c 'zmodload zsh/zpty; zpty z "PS1= TERM=dumb zsh -f -i"
    zpty -w z "autoload -U compinit; compinit -u -D; source ./_train_resnet; echo rea""dy"
    zpty -r z out "*ready*"; zpty -w -n z $'"'train_resnet --prec\tb\t\n'"'; zpty -r -m z out "*bf16*" && print -r -- $out' \
    >zsh.out 2>&1 &
  zsh=$!
  for ((i = 0; i < 300; i++)); do kill -0 $zsh 2>/dev/null || break; sleep 0.1; done
  kill $zsh 2>/dev/null
  grep -q -e '--precision.*bf16' zsh.out || fail "completion by zsh: $(cat -v zsh.out)"
else
  echo 'skipped: completion by zsh, which is not installed'
fi
if command -v man >/dev/null; then
  LC_ALL=C MANWIDTH=80 man --warnings -l page.1 >page.txt 2>man.err || fail "man -l: $(cat man.err)"
  [ ! -s man.err ] || fail "man warns: $(cat man.err)"
  grep -q -e '--batch-size N' page.txt || fail 'the page that man shows has no --batch-size N'
else
  echo 'skipped: the manual page as man formats it (no man here)'
fi
"$program" --list | grep -q 'resnet152' || fail '--list'
"$program" --list | grep -q 'known data.* cifar-10 .*fashion-mnist' || fail '--list: known data'
"$program" --data sets/CIFAR10/ --quiet 2>err; [ $? = 2 ] && grep -q 'cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530)' err ||
  fail "how to get CIFAR-10: $(cat err)"
"$program" --data cifar-11 --quiet 2>err; [ $? = 2 ] && ! grep -q md5 err || fail "a set that nobody knows: $(cat err)"
"$program" --data cifar --dry-run --quiet --json >plan && [ "$(json plan parameters)" = 269722 ] || fail "--dry-run: $(cat plan)"
"$program" --data cifar --dry-run --quiet | grep -q '^exchange' && fail '--dry-run of a dense run has an exchange'
# A batch that the data do not fill, and one that the memory does not hold.
"$program" --learners 4 --device cpu --batch-size 5000 --arch cnn --image-size 8 --dry-run >plan 2>plan.err || fail "--dry-run: $(cat plan.err)"
grep -q '^steps .* 3750 images each of a learner$' plan && grep -q '20000 images.* 15000' plan.err && grep -q '^peak .* for 4 learners$' plan ||
  fail "a batch larger than the data: $(cat plan plan.err)"
"$program" --device cpu --batch-size 15000 --arch resnet152 --image-size 224 --dry-run --quiet | grep -q '^too much: .*memory left$' ||
  fail '--dry-run: too little memory'
"$program" --data cifar --dry-run --quiet --compress powersgd:rank=1 --learners 2 >plan || fail "--dry-run: $(cat plan)"
grep -Eq '^exchange .* 18 .*powersgd:rank=1$' plan && grep -q '^residuals ' plan || fail "--dry-run: $(cat plan)"
"$program" --data cifar --dry-run --quiet --compress auto --learners 2 | grep -q 'scalecom:rate=100' ||
  fail '--dry-run: what auto means'
"$program" --data cifar --dry-run --json --quiet --compress scalecom:rate=100 --dense-layers . |
  grep -q '"compressed_tensors":0,"exchange_bytes_per_step":1078888,"compressor_state_bytes":0' || fail '--dry-run: no tensor is compressed'
"$program" --data cifar --steps 3 --batch-size 8 --trace t.json --trace-steps 2:3 --quiet \
  --output-dir traced || fail '--trace failed'
grep -q '"forward"' t.json || fail 'the trace has no forward track'

# No convolution on oneDNN's reference implementation, a thousand times slower, with AVX-512 and without.
for isa in ALL AVX2; do
  for arch in resnet20 resnet18; do
    ONEDNN_MAX_CPU_ISA=$isa DNNL_MAX_CPU_ISA=$isa ONEDNN_VERBOSE=1 DNNL_VERBOSE=1 "$program" --data cifar --arch $arch \
      --batch-size 4 --steps 1 --quiet --output-dir "verbose-$arch-$isa" >verbose || fail "$arch, $isa: exit code $?"
    grep -q '_verbose,exec,cpu,convolution,' verbose || fail "$arch, $isa: oneDNN reports no convolution"
    slow=$(grep -c 'exec,cpu,convolution,ref' verbose)
    [ "$slow" = 0 ] || fail "$arch, $isa: $slow convolutions by oneDNN's reference implementation"
  done
done

finish
