#!/usr/bin/env bash
# Runs the commands of README.md, docs/flags.md, docs/privacy.md and docs/howto/, page by page as a reader would, on tiny data and with
# flags appended that keep each command short (few steps, small images). Commands that cannot run here are listed
# with the reason; one that is neither run nor listed is a failure. Checks itself first on commands that fail.
#   tests/check_docs_run.sh BUILD [PAGE…]
set -u
build=$(realpath "$1") && shift || exit 2
cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- README.md docs/flags.md docs/privacy.md docs/howto/*.md
root=$PWD
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work  # as in program.sh
unset "${!HEDDLE_@}"  # they are flags to the programs
export OMP_WAIT_POLICY=passive build root

# Prints why a command is not run; nothing if it is.
reason() {  # PAGE COMMAND
  case "$1 $2" in
    *slurm.md*) echo 'needs Slurm' ;;
    *gpu.md*) echo 'needs a GPU' ;;
    *'./run netlab'*) echo 'needs root and network namespaces' ;;
    *' cmake --install '* | *' cmake -S mine '* | *' cmake --build mine'*) echo 'stage "consumer" of .ci/run does it' ;;
    *' mpirun '*) command -v mpirun >/dev/null || echo 'needs mpirun' ;;
  esac
}

# ------------------------------------------------------------------------ what a reader would have
# The programs, kept short. If a flag is given twice, the last one counts.
make_programs() {  # in the current folder
  mkdir -p build bin
  cat >build/train_resnet <<'SH'
#!/usr/bin/env bash
program=${0##*/} words=" $* " more=(--threads 1 --quiet)
case $words in
  *' --evaluate '* | *' --predict '* | *' --generate '* | *' --dry-run '*) ;;
  *)
    more+=(--steps 6)
    case $program$words in
      train_resnet*) more+=(--image-size 8 --batch-size 4) ;;
      train_dpgan*) more+=(--teachers 40 --epochs 2 --dp-anyway) ;;
      train_gcn*) ;;
      *' --preset '* | *' --init '*) ;;
      *) more+=(--emsize 16 --nhid 16) ;;
    esac ;;
esac
case $words in *' topagg'*) ;; *' --compress '*) more+=(--compress-start 2) ;; esac
case $words in *' --save-every '*) more+=(--save-every 3) ;; esac
case $words in *' --shadow '*) more+=(--shadow 2) ;; esac
case $words in *' --dump-gradients '*) more+=(--dump-gradients 4) ;; esac
case $words in *' --explain-step '*) more+=(--explain-step 4) ;; esac
case $words in *' --trace-steps '*) more+=(--trace-steps 4:5) ;; esac
exec "$build/$program" "$@" "${more[@]}"
SH
  cp build/train_resnet build/train_lm
  cp build/train_resnet build/train_dpgan
  cp build/train_resnet build/train_gcn
  # One machine plays all hosts, with two ranks.
  cat >bin/mpirun <<'SH'
#!/usr/bin/env bash
words=()
while [ $# -gt 0 ]; do
  case $1 in
    --host) shift 2 ;;
    -np | -n) words+=("$1" 2); shift 2 ;;
    *) words+=("$1"); shift ;;
  esac
done
PATH=${PATH#*:}
exec mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "${words[@]}"
SH
  # Configures, and asks Ninja what it would compile; build/ is the folder of ./run.
  cat >bin/cmake <<'SH'
#!/usr/bin/env bash
PATH=${PATH#*:}
case " $* " in
  *' --preset '* | *' -B build '*) echo "configures build/, from which ./run takes its programs: $*" >&2; exit 1 ;;
  *' --build '*) exec cmake "$@" -- -n ;;
esac
ln -sfn "$root"/{CMakeLists.txt,cmake,core,layers,data,comm,compress,optim,apps,tests,docs} . || exit 1
exec cmake "$@" -DHEDDLE_CUDA=OFF
SH
  cat >run <<'SH'
#!/usr/bin/env bash
verb=$1; shift
case $verb in
  train_resnet | train_lm | train_dpgan | train_gcn) exec build/$verb "$@" ;;
  headroom)  # the command follows the --
    shift
    case $1 in mpirun) ;; *) set -- build/"$@" ;; esac
    exec "$@" --headroom 1 ;;
  minimal_train) exec "$build/minimal_train" ;;
  report) exec "$build/report" "$@" ;;
  bench) exec "$build/bench" "$@" --threads 1 --steps 1 ;;
  watch) exec "$build/report" --watch "$@" --once ;;
  man) exec "$build/${1:-train_resnet}" --man ;;
  supervise) [ "$1" = -- ] && exec "build/$2" "${@:3}" --resume auto ;;  # tests/test_supervise.sh has the rest
  doctor) exec "$root/run" doctor ;;
  unpack_data) exec python3 "$root/apps/unpack_data.py" "$@" ;;
  debian_graph)  # of an index with few packages
    for name in vim coreutils {1..20}; do
      printf 'Package: %s\nSection: %s\nDescription: text tools %s\nDepends: coreutils\n\n' $name $((${#name} % 2)) $name
    done >Packages
    exec python3 "$root/apps/debian_graph.py" "$1" Packages ;;
  draw_trace) exec python3 "$root/docs/tools/draw_trace.py" "$@" ;;
  reproduce) exec python3 "$root/docs/tools/reproduce.py" "$@" ;;
  build) [ -x "$build/train_resnet" ] ;;  # this check runs what it has built
  test)  # CI runs them all; in a folder of its own, as even ctest -N empties the log of the tests running now
    mkdir -p listed && cp "$build/CTestTestfile.cmake" listed/
    ctest --test-dir listed -N "$@" | grep -q 'Total Tests: [1-9]' ;;
  *) echo "no verb $verb here" >&2; exit 2 ;;
esac
SH
  chmod +x build/* bin/* run
}

make_data() {
  local png=iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAALUlEQVR42u3NMQkAAAzEwFdS/1JeVjV0LBxkDFw6c+q4NwAAAAAAAAAAAOALsH2eED02ziBjAAAAAElFTkSuQmCC
  local set split class i
  for set in photos imagenet; do
    for split in train val; do
      for class in cat dog; do
        mkdir -p path/to/$set/$split/$class
        for i in 1 2 3 4; do base64 -d <<<$png >path/to/$set/$split/$class/$i.png; done
      done
    done
  done
  base64 -d <<<$png | tee cat.jpg >dog.png
  mkdir -p path/to/folder path/to/cifar-10-batches-bin
  for i in {1..400}; do echo "on Monday line $((i % 7)) the cat saw the dog"; done | tee notes.txt >path/to/folder/train.txt
  head -20 notes.txt | tee path/to/folder/valid.txt >path/to/folder/test.txt
  cp -r path/to/folder path/to/ptb
  cp notes.txt shakespeare.txt && cp notes.txt text.txt
  # CIFAR-10's binary files: a label and 3072 bytes for each image.
  for i in data_batch_{1..5} test_batch; do
    for class in {0..9}; do printf "\\x0$class"; head -c 3072 /dev/zero | tr '\0' "\\$((class + 1))0"; done >path/to/cifar-10-batches-bin/$i.bin
  done
  tar czf path/to/cifar-10-binary.tar.gz -C path/to cifar-10-batches-bin
  mkdir -p path/to/mnist  # ten images, and their labels
  for i in train t10k; do
    { printf '\0\0\10\3\0\0\0\12\0\0\0\34\0\0\0\34' && head -c 7840 /dev/zero; } | gzip >path/to/mnist/$i-images-idx3-ubyte.gz
    printf '\0\0\10\1\0\0\0\12\0\1\2\3\4\5\6\7\10\11' | gzip >path/to/mnist/$i-labels-idx1-ubyte.gz
  done
  printf '%s\n' airplane automobile bird cat deer dog frog horse ship truck >path/to/cifar-10-batches-bin/batches.meta.txt
}

# Makes what a page takes for granted.
prepare() {  # PAGE
  case $1 in
    README.md | docs/flags.md)  # two runs to look at
      for run in a b; do build/train_resnet --output-dir runs/$run || return 1; done ;;
    *weights-in-pytorch.md | *fine-tuning.md)  # the page makes this file with PyTorch
      build/train_resnet --arch resnet18 --stem imagenet --data path/to/imagenet --steps 1 --output-dir made &&
        cp made/model.safetensors resnet18.safetensors ;;
  esac
}

page() {  # PAGE, from the root of the tree; in a folder of its own
  local name=$1 file line why code ran=0 status=0
  file=$(realpath "$1")
  rm -rf "$work/page" && mkdir "$work/page" && cd "$work/page" || return 2
  make_programs
  make_data
  prepare "$name" >prepare.log 2>&1 || { echo "$name: not prepared: $(tail -3 prepare.log)"; return 1; }
  grep -q '^import torch' "$file" && echo "$name: not run: its Python (needs torch and torchvision)"
  while IFS= read -r line; do
    line=${line%%  #*}
    case $line in '' | '#'*) continue ;; esac
    why=$(reason "$name" " $line")
    if [ -n "$why" ]; then echo "$name: not run: $line ($why)"; continue; fi
    case $line in
      ./run\ * | mpirun\ * | build/* | cmake\ *) ;;
      *) echo "$name: neither run nor listed: $line"; status=1; continue ;;
    esac
    PATH=$PWD/bin:$PATH timeout 150 bash -c "$line" >out 2>err </dev/null; code=$?
    ran=$((ran + 1))
    [ $code = 0 ] || { echo "$name: exit code $code: $line: $(tail -3 err)"; status=1; }
  done < <(awk '/^```/ { code = code ? 0 : ($0 == "```" || $0 == "```sh") ? 1 : 2; next } code == 1' "$file")
  echo "$name: $ran commands run"
  return $status
}

for broken in './run train_resnet --no-such-flag' './run report nowhere' './run test -R no_such_test' 'curl example.org' \
  './run train_lm --init nowhere --generate 3' 'cmake --preset release -DHEDDLE_APPS=OFF'; do
  printf '```\n%s\n```\n' "$broken" >"$work/broken.md"
  if (page "$work/broken.md") >/dev/null; then echo "check_docs_run: did not see that this fails: $broken"; exit 1; fi
done

status=0
for name in "$@"; do (page "$name") || status=1; done > >(tee "$work/said")
wait
ran=$(awk '/ commands run$/ { n += $2 } END { print n + 0 }' "$work/said")
echo "$ran commands of $# pages run"
sed -n 's/^[^ ]*: not run: .*(\(.*\))$/\1/p' "$work/said" | sort | uniq -c |
  while read -r times why; do echo "skipped: commands of README.md and docs/, $times ($why)"; done
[ "$ran" -ge $# ] || { echo 'check_docs_run: hardly any commands were found'; status=1; }
exit $status
