#!/usr/bin/env bash
# Runs train_lm as a user would, on a text of a few lines: results that must agree, runs that must
# repeat bit for bit, exit codes and one-line errors for bad input.
#   tests/test_program_lm.sh build/train_lm
set -u
program=$(realpath "$1") || exit 2
. "$(dirname "$0")/program.sh"
export OMP_NUM_THREADS=1  # networks this small are slower on two threads than on one

bad() { refuse "$1" "$program" "${@:2}"; }  # PATTERN FLAG…
tiny=(--emsize 12 --nhid 12 --bptt 8 --batch-size 3 --quiet)
chars() { "$program" --data a.txt --lr 0.02 --epochs 3 "${tiny[@]}" "$@" || fail "exit code $?: $*"; }
words() { "$program" --data words "${tiny[@]}" "$@" || fail "exit code $?: $*"; }

# ------------------------------------------------------------------------------------------- data
for i in {1..30}; do printf 'line %d: a b\xe9ll\n' $((i % 4)); done >a.txt
mkdir words
for i in {1..40}; do echo "the cat saw the dog number$((i % 5)) and ran"; done >words/train.txt
for i in {1..8}; do echo "the dog saw number$((i % 3))"; done >words/valid.txt
for i in {1..9}; do echo "the cat ran and the dog saw"; done >words/test.txt

# --------------------------------------------------------------------------------- character level
chars --json --output-dir a >a.json 2>a.err
[ -s a.err ] && fail "--quiet: $(cat a.err)"
[ "$(wc -l <a.json)" = 1 ] || fail "stdout is more than the JSON object: $(cat a.json)"
for key in status epoch step train_loss valid_loss valid_ppl valid_bpc test_loss test_ppl test_bpc \
    tokens_per_s wall_s first_step_s peak_rss_bytes world_size seed run_folder; do
  case $(json a.json $key) in '' | null) fail "the JSON object has no $key: $(cat a.json)" ;; esac
done
[ "$(json a.json epoch)" = 3 ] || fail "3 epochs were asked for: $(cat a.json)"
for file in config.toml run.json metrics.jsonl model.safetensors; do
  [ -s "a/$file" ] || fail "a/$file is missing"
done
for key in step epoch split loss lr bpc tokens_per_s t_data t_forward t_backward t_update; do
  sed -n 2p a/metrics.jsonl | grep -q "\"$key\":" || fail "the metrics have no $key"
done
[ "$(grep -c '"split":"valid"' a/metrics.jsonl)" = 3 ] || fail 'expected a validation for each epoch'
[ "$(grep -c '"split":"test"' a/metrics.jsonl)" = 1 ] || fail 'expected one test'
chars --output-dir b >stdout && same_losses a b 'same flags, another process'
[ -s stdout ] && fail 'stdout is not empty without --json'
cmp -s a/model.safetensors b/model.safetensors || fail 'the weights of two equal runs differ'
"$program" --config a/config.toml --output-dir replay --quiet >stdout && same_losses a replay 'config.toml replayed'
chars --output-dir seed --seed 2
[ "$(losses a)" != "$(losses seed)" ] || fail 'another seed gives the same losses'
chars --output-dir micro --accumulate 4 --dropout 0.5 --steps 5 --trace t.json --trace-steps 2:3
[ "$(grep -c '"split":"train"' micro/metrics.jsonl)" = 5 ] || fail '--accumulate: 5 steps were asked for'
grep -q '"forward"' t.json || fail 'the trace has no forward track'

# A window half as long as --bptt has half the weight: the same as half the rate with that --bptt.
bytes=$(wc -c <a.txt)
rows=$(((bytes / 20 * 18 + bytes % 20 * 18 / 20) / 3))
weight() { chars --optimizer sgd --clip-grad-norm 1e30 --steps 3 --dropout 0 "$@" >stdout; }
weight --output-dir whole --bptt $((rows - 1)) --lr 2
weight --output-dir half --bptt $((2 * rows - 2)) --lr 4
weight --output-dir twice --bptt $((rows - 1)) --lr 4
only_losses() { losses "$1" | sed 's/"lr":[^,]*//'; }
[ "$(only_losses whole)" = "$(only_losses half)" ] || fail 'a short window is not weighted by its length'
[ "$(only_losses whole)" != "$(only_losses twice)" ] || fail 'the rate has no effect'

# ------------------------------------------------------------- weights, evaluating and generating
# Neither batch size nor window changes an evaluation, and flags of the network are not needed.
for extra in '' '--batch-size 7 --bptt 3'; do
  # shellcheck disable=SC2086
  "$program" --data a.txt --init a --evaluate --quiet --json $extra >e.json || fail "--evaluate $extra"
  for key in valid_loss valid_ppl test_loss test_bpc; do
    [ "$(json a.json $key)" = "$(json e.json $key)" ] ||
      fail "$key after loading: $(json e.json $key) instead of $(json a.json $key) ($extra)"
  done
done
generate() { "$program" --init a --generate 30 --quiet "$@" || fail "--generate $*"; }
generate --prompt 'line' >g1 2>stderr; generate --prompt 'line' >g2; generate --prompt 'line' --seed 2 >g3
[ -s stderr ] && fail "generation writes to stderr in spite of --quiet: $(cat stderr)"
cmp -s g1 g2 || fail 'two equal generations differ'
cmp -s g1 g3 && fail 'another seed writes the same'
[ "$(head -c 4 g1)" = line ] || fail 'the text does not begin with the prompt'
[ "$(wc -c <g1)" -ge 34 ] || fail "30 bytes after the prompt were asked for: $(cat g1)"
generate --temperature 0 >g1; generate --temperature 0 --seed 9 >g2
cmp -s g1 g2 || fail 'arg-max depends on the seed'
generate --json | grep -q '"generated":"..' || fail '--generate --json'
chars --output-dir both --steps 1 --train --generate 5 --prompt 'a b' >stdout
[ "$(head -c 3 stdout)" = 'a b' ] || fail '--generate after training'
chars --init a --output-dir further --steps 3 --json >stdout || fail 'training from --init'

# -------------------------------------------------------------------------------------- word level
words --epochs 4 --json --output-dir w --tied >w.json
for key in valid_ppl test_ppl; do
  case $(json w.json $key) in '' | null) fail "word level: no $key: $(cat w.json)" ;; esac
done
[ -n "$(json w.json valid_bpc)" ] && fail 'bits per character at word level'
grep -q '"ppl":' w/metrics.jsonl || fail 'no perplexity in the metrics'
"$program" --data words --init w --evaluate --quiet --json >e.json || fail '--evaluate, word level'
[ "$(json w.json valid_loss)" = "$(json e.json valid_loss)" ] || fail "word level: loss after loading: $(cat e.json)"
# Plateau: what is saved, tested and reported is the best epoch.
words --output-dir p --lr-scheduler plateau --epochs 6 --lr 60 --json >p.json
best=$(grep '"split":"valid"' p/metrics.jsonl | sed 's/.*"loss":\([^,]*\).*/\1/' | sort -g | head -1)
[ "$(json p.json valid_loss)" = "$best" ] || fail "plateau reports $(json p.json valid_loss), the best is $best"
"$program" --data words --init p --evaluate --quiet --json >e.json
[ "$(json p.json test_loss)" = "$(json e.json test_loss)" ] || fail 'plateau: the saved weights are not those tested'
"$program" --init w --generate 12 --prompt 'the cat' --quiet >g1 || fail '--generate, word level'
grep -q '^the cat' g1 || fail "word level: the prompt is not shown: $(cat g1)"
bad 'unicorn' --init w --generate 5 --prompt 'the unicorn'

# ------------------------------------------------------------------------------------------ errors
bad '--dropout' --dropuot 0.5
bad '--preset: .*zaremba-small' --preset zaremba
bad 'nowhere' --data nowhere
bad 'hidden' --config <(echo 'hidden = 3')
bad '--tied' --tied --nhid 3
bad '--init' --data a.txt --generate 5
bad '--prompt.* --generate' --data a.txt --prompt x
bad 'none.safetensors' --init none.safetensors --evaluate
bad 'words/train.txt\|vocabulary' --init a --data words/train.txt --evaluate
bad '--level.* word.* char' --init a --level word --data words --evaluate
bad 'rnn.weight_ih_l0.*(64, 12).*(48, 12)' --init a --data a.txt --nhid 16 --evaluate
bad ' 90 ' --init a --generate 5 --prompt 'Z'
bad '--accumulate' --data a.txt --accumulate 1000
bad ' 5000 ' --data a.txt --batch-size 5000
head -c 3000 a/model.safetensors >w.safetensors && bad 'w.safetensors' --init w.safetensors --generate 3
mkdir empty && bad 'empty' --data empty
cp -r words unknown && echo 'the yeti' >>unknown/valid.txt && bad 'valid.txt.*yeti' --data unknown
"$program" --data a.txt "${tiny[@]}" --optimizer sgd --lr 1e9 --clip-grad-norm 1e30 --epochs 5 --json \
  --output-dir diverged >d.json 2>stderr
[ $? = 3 ] && [ "$(json d.json status)" = '"diverged"' ] || fail "divergence: $(cat d.json stderr)"
[ -e diverged/model.safetensors ] && fail 'weights of a diverged run'

# --------------------------------------------------------------------------------------- questions
"$program" --help | grep -q 'zaremba-large' || fail '--help'
"$program" --version | grep -q '^heddle [0-9]' || fail '--version'
"$program" --man | grep -q 'zaremba\\-large' || fail '--man'
"$program" --data a.txt "${tiny[@]}" --steps 3 --explain-step 3 --quiet --output-dir told || fail '--explain-step'
grep -q '^Step 3 .*train_lm' told/explain-3.txt || fail "explanation: $(head -3 told/explain-3.txt)"
grep -q ' final .* encoder.weight .* norm [0-9]' told/explain-3.txt || fail "explanation: $(cat told/explain-3.txt)"
"$program" --list | grep -q 'wlm' || fail '--list'
"$program" --data PTB --quiet 2>err; [ $? = 2 ] && grep -q 'ptb.train.txt (sha256 fcea919f' err || fail "how to get PTB: $(cat err)"
"$program" --data words --dry-run --quiet --emsize 7 --nhid 5 --nlayers 1 --json >plan || fail '--dry-run'
# 11 words and <eos>: embedding 12 * 7, gates 4 * 5 * (7 + 5 + 2), decoder 12 * (5 + 1).
V=$(tr ' ' '\n' <words/train.txt | sort -u | wc -l)
V=$((V + 1))
[ "$(json plan parameters)" = $((V * 7 + 4 * 5 * (7 + 5 + 2) + V * 6)) ] || fail "--dry-run: $(cat plan)"
"$program" --dump-config --preset wlm >dumped.toml && "$program" --config dumped.toml --dump-config |
  sed 's/  #.*//' | cmp -s - <(sed 's/  #.*//' dumped.toml) || fail 'a dumped configuration changes'
# The embedded text, and a sample without a flag that asks for it.
"$program" --steps 1 --emsize 4 --nhid 4 --output-dir sources --print-freq 1 >stdout 2>narration || fail 'the embedded text failed'
grep -q 'step 1/1' narration || fail "no progress line: $(cat narration)"
[ "$(wc -c <stdout)" -ge 400 ] || fail 'no sample was printed after training on the embedded text'

finish
