#!/usr/bin/env bash
# What a run leaves for people, as they would meet it: report.html at its end and by the program
# report, opened in headless Chromium; TensorBoard's files, read by TensorBoard itself where a python3
# has it; the terminal's view.
#   tests/test_report.sh build/train_resnet build/train_lm build/report
# Without chromium, or without the Python package tensorboard (HEDDLE_PYTHON names another python3),
# those parts are skipped.
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") && report=$(realpath "$3") || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
python=${HEDDLE_PYTHON:-python3}
unset "${!HEDDLE_@}"  # they are flags to the programs
export OMP_WAIT_POLICY=passive
failures=0

fail() { printf 'FAIL: %s\n' "$*"; failures=$((failures + 1)); }
skip() { printf 'skipped: %s\n' "$*"; }

run=(--image-size 16 --batch-size 4 --learners 2 --threads 1 --steps 12 --print-freq 4 --quiet)
"$resnet" "${run[@]}" --compress scalecom:rate=50 --compress-start 2 --layerwise lgreco --lgreco every=4,window=2 \
  --shadow 4 --bucket-mb 0.25 --trace packed.trace.json --trace-steps 9:11 --output-dir packed >/dev/null || fail 'a compressed run'
"$resnet" "${run[@]}" --output-dir dense >/dev/null || fail 'a dense run'
"$resnet" "${run[@]}" --steps 30 --net 20mbit,1ms --compress auto --compress-start 3 --bucket-mb 0.25 --output-dir auto >/dev/null ||
  fail 'a run that chooses'
for i in {1..300}; do echo "line $((i % 7)): the cat saw the dog"; done >a.txt
"$lm" --data a.txt --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --epochs 2 --threads 1 --quiet \
  --output-dir text >/dev/null || fail 'a language model'
"$lm" --data a.txt --emsize 12 --nhid 12 --nlayers 1 --bptt 8 --batch-size 2 --steps 2 --threads 1 --quiet \
  --no-report --no-tensorboard --output-dir bare >/dev/null || fail 'without report'
[ -z "$(ls bare | grep -e report -e tfevents)" ] || fail "--no-report --no-tensorboard: $(ls bare)"
for folder in packed dense auto text; do
  [ -s $folder/report.html ] || fail "no report in $folder"
  [ "$(ls $folder | grep -c '^events.out.tfevents.[0-9]')" = 1 ] || fail "no events in $folder: $(ls $folder)"
done
"$report" packed dense --output both.html 2>both.err || fail "report of two runs: $(cat both.err)"
"$report" nothing 2>err; [ $? = 2 ] || fail 'a folder that is none'
grep -q 'nothing: no run folder' err || fail "message: $(cat err)"
for figure in loss score lr bytes breakdown layer-bytes run1-plans run1-residuals run1-quality run1-timeline; do
  grep -q "<figure id=\"$figure\"" packed/report.html || fail "no figure $figure"
done
grep -q '<td>bits per character</td>\|Bits per character' text/report.html || fail 'no score of the language model'
# The last step's loss, and a plan's setting, as the run has written them.
loss=$(sed -n 's/^{"step":12,.*"split":"train","loss":\([0-9.]*\),.*/\1/p' packed/metrics.jsonl)
grep -oq "<td>training</td><td>12</td><td>$(printf %.4f "$loss" | cut -c1-5)" packed/report.html || fail "loss $loss is not in the table"
plan=$(ls packed | sed -n 's/^plan-\([0-9]*\).json/\1/p' | sort -n | tail -1)
grep -q "<th>step $plan</th>" packed/report.html || fail "plan of step $plan is not on the map"

# The choice of --compress auto, as exchange-15.json or, where it was measured, exchange-21.json has it: of the first bucket the seconds in collectives.
comm=$(sed 's/.*"buckets":\[{"compressed":[a-z]*,"joined":false,"dense":{[^}]*"comm_s":\([0-9.]*\),.*/\1/' auto/exchange-*.json | cut -c1-5)
grep -q '<figure id="run1-choices"' auto/report.html || fail 'no figure of the choice by bucket'
grep -q "<td>bucket 0: fc.bias … [a-z0-9.]*</td><td>[a-z, ]*</td>\(<td>[0-9.]*</td>\)\{2\}<td>$comm" auto/report.html ||
  fail "the first bucket: $comm, $(grep -o '<td>bucket 0.\{200\}' auto/report.html)"

"$report" --watch packed --once >watch.txt || fail 'watch'
grep -q 'step 12/12  done' watch.txt || fail "watch: $(cat watch.txt)"
grep -q 'ratio [0-9.]*  exposed [0-9.]* %' watch.txt || fail "watch: $(cat watch.txt)"

# ----------------------------------------------------------------------------------- a browser
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
open() {  # PAGE [FLAG…] -> the page as the browser has it, messages in browser.err
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
    --enable-logging=stderr --allow-file-access-from-files "${@:2}" --dump-dom "file://$work/$1" 2>browser.err
}
if [ -z "$browser" ]; then
  skip 'pages in a browser (no chromium here; ./run setup ci installs it)'
else
  echo '<body><script>undefined_function()</script></body>' >broken.html
  open broken.html >/dev/null
  grep -q 'CONSOLE.*undefined_function' browser.err || fail "an error of a page is not seen: $(cat browser.err)"
  for page in packed/report.html auto/report.html both.html text/report.html; do
    open $page >page.dom || fail "$page: the browser failed"
    grep CONSOLE browser.err && fail "$page: the console has a message"
    shown=$(sed -n 's/.*data-figures="\([0-9]*\)".*/\1/p' page.dom)
    [ "${shown:-0}" = "$(grep -o '<figure ' $page | wc -l)" ] || fail "$page: $shown figures in the browser"
    # At the width of a phone nothing but the boxes meant for it scrolls sideways.
    cat >phone.html <<HTML
<body><iframe src="$page" width="390" height="4000"></iframe><script>
onload = () => {
  const page = document.querySelector('iframe').contentDocument;
  const figures = [...page.querySelectorAll('figure')].filter(f => f.getBoundingClientRect().height > 60);
  document.body.dataset.width = page.documentElement.scrollWidth;
  document.body.dataset.visible = figures.length;
  const chart = page.querySelector('svg[data-x]');
  chart.dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}));
  document.body.dataset.tip = page.querySelector('.tip').textContent;
};</script></body>
HTML
    open phone.html >phone.dom
    width=$(sed -n 's/.*data-width="\([0-9]*\)".*/\1/p' phone.dom)
    [ "${width:-999}" -le 390 ] || fail "$page: $width pixels wide on a phone"
    grep -q "data-visible=\"$shown\"" phone.dom || fail "$page: figures without height: $(grep -o 'data-visible="[0-9]*"' phone.dom)"
    grep -q 'data-tip="step [0-9.]*[a-z]' phone.dom || fail "$page: no values at a key: $(grep -o 'data-tip="[^"]*"' phone.dom)"
  done
fi

# --------------------------------------------------------------------------------- TensorBoard
cat >read_events.py <<'PY'
import glob, json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
folder = sys.argv[1]
events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0})
events.Reload()
seen = 0
scalars = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
for line in map(json.loads, open(folder + "/metrics.jsonl")):
    if "split" in line:
        tags = {"loss/" + line["split"]: "loss"}
        if line["split"] == "train":
            tags.update({"lr": "lr", "time/backward": "t_backward"})
            if "bytes_sent" in line:
                tags.update({"bytes/sent": "bytes_sent", "ratio/wire": "ratio"})
        for tag, key in tags.items():
            assert abs(scalars[tag][line["step"]] - line[key]) <= 1e-6 * abs(line[key]), (tag, line)
            seen += 1
    if "quality" in line:
        for layer, values in line["quality"].items():
            got = scalars[f"quality/{layer}/residual_norm"][line["step"]]
            assert abs(got - values["residual_norm"]) <= 1e-6 * abs(values["residual_norm"]), (layer, got)
            seen += 1
        norms = [values["residual_norm"] for values in line["quality"].values()]
        histogram = next(e for e in events.Histograms("residual_norm") if e.step == line["step"]).histogram_value
        assert histogram.num == len(norms) and abs(histogram.sum - sum(norms)) <= 1e-9 * sum(norms)
        assert sum(histogram.bucket) == len(norms) and histogram.min == min(norms)
        seen += 1
print("agree:", seen)
PY
if "$python" -c 'import tensorboard' 2>/dev/null; then
  for folder in packed dense text; do
    "$python" read_events.py $folder >events.out 2>events.err || fail "TensorBoard reads $folder: $(tail -3 events.err)"
    grep -q 'agree: [1-9][0-9]' events.out || fail "$folder: $(cat events.out)"
  done
else
  skip "events read by TensorBoard itself (no Python package tensorboard for $python)"
fi

[ $failures = 0 ] && echo 'all good'
[ $failures = 0 ]
