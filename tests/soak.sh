#!/usr/bin/env bash
# A long run under observation: four learners with L-GreCo and ScaleCom, with checkpoints and plans all the time. After
# a tenth of the time, resident memory must stay within 1 %, and the number of open files constant; the step's time is
# printed for each tenth. CI does not run this.
#   tests/soak.sh build/train_resnet [SECONDS] [FOLDER]     an hour; the samples stay in FOLDER/soak.tsv
set -u
root=$(cd "$(dirname "$0")/.." && pwd) && resnet=$(realpath "$1") && seconds=${2:-3600} || exit 2
data=${HEDDLE_DATA:-$root/../shared/data}/cifar-10-batches-bin  # without it the rendered shapes
work=${3:-$(mktemp -d)}
mkdir -p "$work" && cd "$work" || exit 2
unset "${!HEDDLE_@}"  # they are flags to the programs
[ -d "$data" ] && data=(--data "$data" --arch resnet20) || data=()

"$resnet" "${data[@]}" --learners 4 --batch-size 32 --threads 1 --epochs 100000 --lr 0.05 --lr-scheduler constant \
  --compress scalecom:rate=100 --layerwise lgreco --lgreco every=100,window=10 --shadow 100 --save-every 200 \
  --output-dir run --quiet >result.json 2>stderr & pid=$!
trap 'kill $pid 2>/dev/null' EXIT
printf 'second\trss_kb\tfiles\tthreads\n' >soak.tsv
begin=$SECONDS
while [ $((SECONDS - begin)) -lt "$seconds" ]; do
  sleep $((seconds / 720 + 1))
  kill -0 $pid 2>/dev/null || { echo "the run ended early: $(tail -3 stderr)"; exit 1; }
  printf '%d\t%s\t%s\t%s\n' $((SECONDS - begin)) "$(awk '/^VmRSS/ { print $2 }' /proc/$pid/status)" \
    "$(find /proc/$pid/fd -type l | wc -l)" "$(awk '/^Threads/ { print $2 }' /proc/$pid/status)" >>soak.tsv
done
kill -TERM $pid
wait $pid; code=$?
trap - EXIT
[ $code = 75 ] || { echo "exit code $code instead of 75: $(tail -3 stderr)"; exit 1; }

python3 - "$seconds" <<'PY'
import json
import statistics
import sys

seconds = float(sys.argv[1])
rows = [[int(x) for x in line.split("\t")] for line in open("soak.tsv").read().splitlines()[1:]]
steps = [line["t_data"] + line["t_forward"] + line["t_backward"] + line["t_update"]
         for line in map(json.loads, open("run/metrics.jsonl")) if line.get("split") == "train"]
tenth = lambda values, i: values[len(values) * i // 10:len(values) * (i + 1) // 10]
print("tenth  resident MB (median, most)  files  threads  ms a step (median)")
for i in range(10):
    part = tenth(rows, i)
    rss = [row[1] / 1024 for row in part]
    print(f"{i + 1:5}  {statistics.median(rss):17.1f} {max(rss):9.1f}  {max(row[2] for row in part):5}"
          f"  {max(row[3] for row in part):7}  {1e3 * statistics.median(tenth(steps, i)):10.1f}")
warm = rows[len(rows) // 10:]
first, last = tenth(warm, 0), tenth(warm, 9)
growth = statistics.median(r[1] for r in last) / statistics.median(r[1] for r in first) - 1
files = max(r[2] for r in last) - max(r[2] for r in first)
print(f"{len(steps)} steps; after the first tenth resident memory changed by {100 * growth:+.2f} %, open files by {files:+d}")
sys.exit(abs(growth) > 0.01 or files != 0)
PY
