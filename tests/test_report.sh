#!/usr/bin/env bash
# Output of a run for people, tested as they would use it: report.html at its end and by the program
# report, opened in headless Chromium and operated there; TensorBoard's files, read by TensorBoard itself if a python3
# has it; the view in the terminal.
#   tests/test_report.sh build/train_resnet build/train_lm build/report
# Without chromium, or without the Python package tensorboard (HEDDLE_PYTHON names another python3),
# those parts are skipped.
set -u
resnet=$(realpath "$1") && lm=$(realpath "$2") && report=$(realpath "$3") || exit 2
work=$(mktemp -d) || exit 2
following=''
trap '[ -z "$following" ] || kill $following 2>/dev/null; rm -rf "$work"' EXIT
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
"$report" nothing 2>err; [ $? = 2 ] || fail 'expected exit code 2 for a folder that does not exist'
grep -q 'nothing: no run folder' err || fail "message: $(cat err)"
"$report" packed --trace typo.json 2>err; [ $? = 2 ] && grep -q 'typo.json: no such file' err || fail "a trace that does not exist: $(cat err)"
"$report" --watch packed --once >watch.txt || fail 'watch'
grep -q 'step 12/12  done' watch.txt || fail "watch: $(cat watch.txt)"
grep -q 'ratio [0-9.]*  exposed [0-9.]* %' watch.txt || fail "watch: $(cat watch.txt)"

# ----------------------------------------------------------------------------------- a browser
# What the page draws is compared with what the run has written: the last step's loss, a plan's step, and the first
# bucket's seconds in collectives in the choice of --compress auto (exchange-15.json, or exchange-21.json if measured).
loss=$(sed -n 's/^{"step":12,.*"split":"train","loss":\([0-9.]*\),.*/\1/p' packed/metrics.jsonl)
plan=$(ls packed | sed -n 's/^plan-\([0-9]*\).json/\1/p' | sort -n | tail -1)
comm=$(sed 's/.*"buckets":\[{"compressed":[a-z]*,"joined":false,"dense":{[^}]*"comm_s":\([0-9.]*\),.*/\1/' auto/exchange-*.json | cut -c1-5)
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
open() {  # PAGE [FLAG…] -> the page as the browser has it, messages in browser.err
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --virtual-time-budget=8000 \
    --enable-logging=stderr --allow-file-access-from-files "${@:2}" --dump-dom "file://$work/$1" 2>browser.err
}
# Opens a page in a frame of a phone's width, and says in attributes what it shows, does and holds. Keys and clicks are
# events, as a person's; every row of the tables under "Values" becomes a line "figure|cell|cell|…".
frame() {  # PAGE [WIDTH [FLAG…]] -> the frame's document; values.txt
  cat >frame.html <<HTML
<body><iframe src="$1" width="${2:-390}" height="4000"></iframe><pre></pre><script>
onload = () => setTimeout(() => {
  const view = document.querySelector('iframe').contentWindow, page = view.document, say = document.body.dataset;
  const figures = [...page.querySelectorAll('figure')], plot = page.querySelector('.plot');
  const press = key => plot.dispatchEvent(new view.KeyboardEvent('keydown', {key}));
  const ink = canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
  const tip = () => plot.querySelector('.tip').textContent;
  const ticks = () => labels('x');
  const click = what => what && what.click();
  const drag = () => {  // along the middle half of the first chart
    const canvas = plot.querySelectorAll('canvas')[1], box = canvas.getBoundingClientRect(), y = box.top + box.height / 2;
    for (const [type, part, target] of [['mousedown', 0.25, canvas], ['mousemove', 0.5, page], ['mousemove', 0.75, page], ['mouseup', 0.75, page]])
      target.dispatchEvent(new view.MouseEvent(type, {clientX: box.left + part * box.width, clientY: y, bubbles: true, cancelable: true, view}));
  };
  const labels = axis => [...plot.querySelectorAll('.dygraph-axis-label-' + axis)].map(label =>
    label.textContent + '@' + Math.round(label.getBoundingClientRect().top)).join(' ');
  say.ids = figures.map(f => f.id).join(' ');
  say.shown = page.documentElement.dataset.figures;
  say.width = page.documentElement.scrollWidth;
  say.visible = figures.filter(f => f.getBoundingClientRect().height > 60).length;
  say.blank = [...page.querySelectorAll('.plot')].filter(p => Math.max(...[...p.querySelectorAll('canvas')].map(ink)) < 3).length;
  say.dark = view.matchMedia('(prefers-color-scheme: dark)').matches + ' ' + view.getComputedStyle(page.body).backgroundColor;
  say.texts = page.querySelectorAll('pre').length;
  say.title = page.title;
  say.scripts = page.querySelectorAll('main script, main img, main iframe').length;
  press('Home');
  say.first = tip();
  press('End');
  say.last = tip();
  const whole = ticks();
  press('+');
  say.zoomed = whole !== ticks();
  press('0');
  say.back = whole === ticks();
  drag();
  say.dragged = whole !== ticks();
  press('0');
  const linear = labels('y'), log = plot.parentNode.querySelector('.log');
  click(log);
  say.log = log.getAttribute('aria-pressed') + ' ' + (linear !== labels('y'));
  click(log);
  say.linear = linear === labels('y');
  const axis = page.querySelector('.tools select');
  say.axes = [...axis.options].map(option => option.value).join(' ');
  say.over = say.axes.split(' ').map(name => {
    axis.value = name;
    axis.dispatchEvent(new view.Event('change'));
    press('End');
    return tip().split(' ')[0];
  }).join(' ');
  axis.value = 'step';
  axis.dispatchEvent(new view.Event('change'));
  const names = () => [...page.querySelectorAll('#comparison tbody th')].map(name => name.textContent).join(' ');
  const loss = [...page.querySelectorAll('#comparison thead button')].find(button => button.textContent === 'training loss');
  click(loss);
  say.rising = names();
  click(loss);
  say.falling = names();
  const legend = page.querySelector('.legend button, #comparison [data-run]');
  say.hidden = [...page.querySelectorAll('[data-run][aria-pressed=false]')].map(name => name.textContent).join(' ');
  legend.click();
  press('Home');
  say.hides = legend.getAttribute('aria-pressed') + ' ' + (tip().includes(legend.textContent + ':') && !plot.querySelector('.tip').hidden);
  legend.click();
  const slider = page.querySelector('.tools input');
  slider.value = 0.9;
  slider.dispatchEvent(new view.Event('input'));
  for (const details of page.querySelectorAll('details')) details.open = true;
  setTimeout(() => document.querySelector('pre').append(figures.flatMap(f => [...f.querySelectorAll('figcaption, .row, tr')].map(row =>
    f.id + '|' + [...row.children].map(cell => cell.textContent).join('|'))).join('\\n')), 500);
}, 1500);
</script></body>
HTML
  open frame.html "${@:3}" >frame.dom || return 1
  sed -n '/<pre>/,/<\/pre>/p' frame.dom | sed 's/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' >values.txt
}
said() { sed -n "s/.*data-$1=\"\([^\"]*\)\".*/\1/p" frame.dom | head -1; }
if [ -z "$browser" ]; then
  skip 'pages in a browser (no chromium here; ./run setup ci installs it)'
else
  echo '<body><script>undefined_function()</script></body>' >broken.html
  open broken.html >/dev/null
  grep -q 'CONSOLE.*undefined_function' browser.err || fail "an error of a page is not seen: $(cat browser.err)"
  # A run with the worst possible texts and the largest possible losses.
  cp -r packed 'hostile<img src=x onerror=alert(1)>'
  cd hostile* || exit 2
  sed -i 's/"split":"train","loss":[0-9.]*/"split":"train","loss":1e308/; /"step":3,/s/1e308/-1e308/' metrics.jsonl
  printf '{"step":\n' >>metrics.jsonl
  sed -i 's/^arch = .*/arch = "<\/script><script>alert(2)<\/script>"/' config.toml
  sed -i 's/"classes":\["[a-z]*"/"classes":["<img src=x onerror=alert(3)>"/; s/"sheet":"/&\\"),url(\\"nowhere.png/' mistakes.json
  cd "$work" || exit 2
  "$report" hostile* --output hostile.html 2>/dev/null || fail 'a hostile run'
  common='loss lr bytes breakdown'
  declare -A expected=([packed/report.html]="$common score layer-bytes run1-plans run1-residuals run1-quality run1-timeline confusion hardest"
    [auto/report.html]="$common score layer-bytes run1-choices confusion hardest" [text/report.html]="loss lr breakdown score gradient memory"
    [both.html]="$common score run1-layer-bytes run2-layer-bytes run1-plans run1-residuals run1-quality"
    [hostile.html]="$common score layer-bytes run1-plans run1-residuals run1-quality confusion hardest")
  for page in packed/report.html auto/report.html both.html text/report.html hostile.html; do
    frame $page || fail "$page: the browser failed"
    grep CONSOLE browser.err && fail "$page: the console has a message"
    for figure in ${expected[$page]}; do
      case " $(said ids) " in *" $figure "*) ;; *) fail "$page: no figure $figure: $(said ids)" ;; esac
    done
    [ "$(said shown)" = "$(said ids | wc -w)" ] || fail "$page: $(said shown) figures, $(said ids)"
    # At the width of a phone nothing but the boxes meant for it scrolls sideways.
    [ "$(said width)" -le 390 ] || fail "$page: $(said width) pixels wide on a phone"
    [ "$(said visible)" = "$(said shown)" ] || fail "$page: figures without height: $(said visible)"
    [ "$(said blank)" = 0 ] || fail "$page: charts without a line: $(said blank)"
    case $(said last) in 'step '[0-9]*[a-z]*': '*) ;; *) fail "$page: no values at a key: $(said last)" ;; esac
    [ "$(said first)" != "$(said last)" ] || fail "$page: keys do not move the cursor: $(said first)"
    [ "$(said zoomed) $(said back)" = 'true true' ] || fail "$page: keys do not zoom: $(said zoomed) $(said back)"
    [ "$(said dragged)" = true ] || fail "$page: dragging does not zoom"
    [ "$(said linear)" = true ] || fail "$page: the vertical axis is not as before"
    [ "$(said log)" = 'true true' ] || [ $page = hostile.html ] || fail "$page: no logarithmic axis: $(said log)"
    [ "$(said over)" = "$(said axes | sed 's/time/training/')" ] || fail "$page: axes $(said axes), the cursor says $(said over)"
    [ "$(said hides)" = 'false false' ] || fail "$page: a click on the legend hides nothing: $(said hides)"
    cp values.txt "${page//\//-}.txt"
  done
  [ "$(said scripts)" = 0 ] || fail 'hostile.html: a text became an element'
  case $(said title) in *onerror*) ;; *) fail "hostile.html: title $(said title)" ;; esac
  grep -q '^loss|training|12|1e308$' hostile.html.txt || fail "hostile.html: $(grep '^loss' hostile.html.txt)"
  grep -q "^loss|training|12|$(printf %.4f "$loss" | cut -c1-5)" packed-report.html.txt || fail "loss $loss is not in the table"
  grep -q "^run1-plans|layer.*|step $plan" packed-report.html.txt || fail "plan of step $plan is not on the map"
  grep -q '^run1-timeline|backward|[0-9]*|[0-9.]*$' packed-report.html.txt || fail 'no track backward in the timeline'
  grep -q '^run1-quality|fc\|^run1-quality|layer1.0.conv1.weight|' packed-report.html.txt || fail 'no layer in the quality meter'
  grep -q '^breakdown|exchanging|' packed-report.html.txt || fail 'no time of the exchange'
  grep -q '^score|Bits per character' text-report.html.txt || fail 'no score of the language model'
  grep -q '^score|.*|[0-9.]*$' text-report.html.txt || fail 'no value of the score'
  grep -q "^run1-choices|bucket 0: fc.bias … [a-z0-9.]*|[a-z, ]*|[0-9.]*|[0-9.]*|$comm" auto-report.html.txt ||
    fail "the first bucket: $comm, $(grep '^run1-choices|bucket 0' auto-report.html.txt)"
  grep -q '^run1-choices|[a-z]*||[0-9.]* [mµ]*s ✓$' auto-report.html.txt || fail 'no exchange is marked as chosen'
  # Confusion: as many images as were validated; the classes of the hardest image as the run has written them.
  "$python" - packed <<'PY' || fail "mistakes: $(cut -c1-300 packed/mistakes.json)"
import json, sys
m = json.load(open(sys.argv[1] + "/mistakes.json"))
assert sum(count for _, _, count in m["confusion"]) == 1000 and len(m["images"]) == 16 and len(m["classes"]) == 10, m
hardest = m["images"][0]
row = "hardest|%d|%s|%s|" % (hardest["image"], m["classes"][hardest["class"]], m["classes"][hardest["guess"]])
assert row in open("packed-report.html.txt").read(), row
assert all(a["loss"] >= b["loss"] for a, b in zip(m["images"], m["images"][1:]))
PY
  frame text/report.html
  [ "$(said texts)" = 2 ] || fail "texts of the language model: $(said texts)"
  [ "$(said axes)" = 'step epoch time' ] || fail "axes of one learner: $(said axes)"
  # Two widths and both colour schemes; sorted by loss, up and down.
  for scheme in 0 1; do
    for width in 390 1280; do
      frame both.html $width --blink-settings=preferredColorScheme=$scheme || fail "both.html: the browser failed"
      grep CONSOLE browser.err && fail "both.html, $width, $scheme: the console has a message"
      [ "$(said width)" -le $width ] || fail "both.html: $(said width) pixels wide in $width"
      [ "$(said blank)" = 0 ] || fail "both.html, $width, $scheme: charts without a line: $(said blank)"
      case "$scheme$(said dark)" in '0true rgb(13, 13, 13)' | '1false rgb(247, 247, 245)') ;; *) fail "scheme $scheme: $(said dark)" ;; esac
    done
  done
  better=$(for run in packed dense; do echo "$(sed -n '/"split":"train"/s/.*"loss":\([0-9.]*\),.*/\1/p' $run/metrics.jsonl | awk '{ s += $1 } END { print s / NR }') $run"; done |
    sort -g | sed 's/.* //' | tr '\n' ' ')
  worse=$(for run in $better; do echo $run; done | tac | tr '\n' ' ')
  [ "$(said rising) ,$(said falling) " = "$better,$worse" ] || fail "sorted: $(said rising), $(said falling); by loss: $better"
  # Many runs: a table, whose names are the legend, and curves.
  for i in {1..9}; do cp -r dense many$i && sed -i "s/^lr = .*/lr = 0.$i/" many$i/config.toml; done
  "$report" many? dense --output many.html 2>/dev/null || fail 'ten runs'
  frame many.html 1280 || fail 'many.html: the browser failed'
  grep CONSOLE browser.err && fail 'many.html: the console has a message'
  [ "$(said blank) $(said title)" = '0 10 runs' ] || fail "many.html: $(said blank) $(said title)"
  [ "$(said hidden)" = 'many9 dense' ] || fail "many.html: runs hidden at first: $(said hidden)"
  grep -q '^loss|many3|' values.txt || fail 'many.html: no values of many3'
  # A page that follows a run loads itself anew, and keeps what its reader has set.
  cp -r packed young && sed -i '/^{"summary"/d' young/metrics.jsonl
  "$report" --watch --html young --output live.html >live.out 2>&1 & following=$!
  for i in {1..100}; do [ -s live.html ] && break; sleep 0.1; done
  cat >frame.html <<'HTML'
<body><iframe src="live.html" width="390" height="4000"></iframe><script>
onload = () => setTimeout(() => {
  const frame = document.querySelector('iframe'), axis = () => frame.contentDocument.querySelector('.tools select');
  frame.contentWindow.before = true;
  axis().value = 'time';
  axis().dispatchEvent(new frame.contentWindow.Event('change'));
  setTimeout(() => { document.body.dataset.live = !frame.contentWindow.before + ' ' + axis().value; }, 4000);
}, 1000);
</script></body>
HTML
  open frame.html >frame.dom
  [ "$(said live)" = 'true time' ] || fail "a page that follows a run: $(said live)"
  kill $following 2>/dev/null && following=''
  grep -q live.html live.out || fail "watch --html: $(cat live.out)"
  "$report" --watch --html young --once --output once.html >/dev/null || fail 'watch --html --once'
  grep -q '"renewed_s":0' once.html || fail 'a page made once follows nothing'
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
    "$python" read_events.py $folder >events.out 2>events.err || fail "TensorBoard: $folder: $(tail -3 events.err)"
    grep -q 'agree: [1-9][0-9]' events.out || fail "$folder: $(cat events.out)"
  done
else
  skip "events read by TensorBoard itself (no Python package tensorboard for $python)"
fi

[ $failures = 0 ] && echo 'all good'
[ $failures = 0 ]
