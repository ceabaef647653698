#!/usr/bin/env bash
# Implements ./run gpu-pack: builds a portable CUDA release into build-carry and packs what a GPU machine without
# compiler, packages and network needs for gpu-check into FOLDER (default .carry/run, which git ignores): stripped
# programs, the libraries that such a machine lacks, torch_step.py, tinyshakespeare if it is available, and the runner.
#   ./run gpu-pack [--arch LIST] [--build BUILD] [--limit MIB] [FOLDER]
#     --arch LIST    compute capabilities, as CMAKE_CUDA_ARCHITECTURES takes them (default 90: H100 and H200)
#     --build BUILD  pack the programs of this build folder as they are, and build nothing
#     --limit MIB    fail if FOLDER gets larger (default 60)
# Data sets are searched for in $HEDDLE_DATA, else in ../shared/data.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
programs=(train_resnet train_lm bench test_gpu test_core test_layers test_compress test_optim test_golden)
folder='' build='' arch=90 limit=60

fail() { local code=$1; shift; printf 'gpu-pack: %s\n' "$*" >&2; exit "$code"; }

while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --arch | --build | --limit) [ $# -gt 1 ] || fail 2 "$1 needs a value" ;;&
    --arch) arch=$2; shift ;;
    --build) build=$2; shift ;;
    --limit) limit=$2; shift ;;
    -*) fail 2 "unknown argument '$1'; known: --arch LIST --build BUILD --limit MIB FOLDER" ;;
    *) [ -z "$folder" ] || fail 2 "expected one folder, found '$folder' and '$1'"; folder=$1 ;;
  esac
  shift
done
[[ $limit =~ ^[1-9][0-9]{0,5}$ ]] || fail 2 "--limit: expected MiB, found '$limit'"
folder=${folder:-$root/.carry/run}

if [ -z "$build" ]; then
  build=$root/build-carry
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -x "$nvcc" ] || fail 2 'no nvcc: neither on PATH nor in /usr/local/cuda/bin'
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEDDLE_CUDA=ON -DHEDDLE_MPI=OFF -DHEDDLE_NATIVE=OFF \
    -DCMAKE_CXX_FLAGS=-march=x86-64-v3 -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$arch" \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=6 >&2
  ninja -C "$build" "${programs[@]}" >&2
fi
[ -f "$build/CMakeCache.txt" ] || fail 2 "$build is not a build folder"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work"/{bin,lib,fallback,data,source/tests}
for name in "${programs[@]}"; do
  [ -x "$build/$name" ] || fail 1 "$name is not built in $build"
  install -m 755 "$build/$name" "$work/bin" && strip "$work/bin/$name"
done

# CUDA, cuDNN, NCCL and libc belong to the other machine; the runtimes of C++ and OpenMP are a fallback for old ones.
for name in "${programs[@]}"; do ldd "$work/bin/$name"; done | sed -n 's/^\t\(.*\) => \(\/.*\) (.*/\1 \2/p' | sort -u |
  while read -r name path; do
    case $name in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | ld-linux*) ;;
      libcu* | libnccl* | libnv*) ;;
      libstdc++.so.* | libgcc_s.so.* | libgomp.so.*) install -m 755 "$path" "$work/fallback/$name" ;;
      *) install -m 755 "$path" "$work/lib/$name" ;;
    esac
  done

# Tests read golden values by the path of the sources that they were built from.
sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" >"$work/source_path"
cp -r "$root/tests/golden" "$work/source/tests"
find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
cp "$root/apps/benchmarks/torch_step.py" "$work/bin"
text=${HEDDLE_DATA:-$root/../shared/data}/tinyshakespeare
if [ -d "$text" ]; then cp -rL "$text" "$work/data"; else echo "gpu-pack: no $text: left out" >&2; fi

# Equal contents are equal bytes, so that the runner sees whether it has unpacked this already.
tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 --mode=u+rw -c . | gzip -n >"$folder/heddle.tar.gz"
install -m 755 "$root/tests/gpu_check.sh" "$folder"
bytes=$(du -sb "$folder" | cut -f1)
printf '%s: %d.%d MiB\n' "$folder" $((bytes >> 20)) $(((bytes & 1048575) * 10 >> 20))
[ "$bytes" -le $((limit << 20)) ] || fail 1 "larger than $limit MiB"
