#!/usr/bin/env bash
# Packs what a GPU machine without a network and without Debian's packages needs for
# ./run gpu-check, in pieces below 60 MiB each, into FOLDER (default .carry, which git ignores):
#   deps.tar.gz            headers and libraries of this machine that the build asks for
#   text.tar.gz            Penn Treebank and tinyshakespeare, if they are available
#   cifar-1.tar.gz … -3    CIFAR-10, two files in each
# gpu-check unpacks the pieces that it finds in .carry; they may arrive one after the other.
#   tests/gpu_pack.sh [FOLDER [DATA]]     DATA: default $HEDDLE_DATA, else ../shared/data
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
folder=${1:-$root/.carry} data=${2:-${HEDDLE_DATA:-$root/../shared/data}}
limit=$((60 << 20))
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 1

fail() { printf 'gpu_pack: %s\n' "$*" >&2; exit 1; }

# Headers, CMake's package files and the report's chart library are found by package, libraries by asking the loader.
packages=(libdnnl-dev doctest-dev nlohmann-json3-dev libstb-dev libtomlplusplus-dev libxxhash-dev libjs-dygraphs)
list=$(mktemp) || exit 1
trap 'rm -f "$list"' EXIT
for package in "${packages[@]}"; do
  dpkg -L "$package" >/dev/null 2>&1 || fail "$package is not installed here: ./run setup"
  dpkg -L "$package" | grep -E '^/usr/(include/|share/cmake/|lib/cmake/|share/javascript/dygraphs/dygraph.min.js$)' |
    while IFS= read -r path; do [ -d "$path" ] || printf '%s\n' "$path"; done
done >"$list"
# Packs files under the names that the linker searches for: tar follows the links. Debian's oneDNN is
# linked with libOpenCL, but nothing of it is used.
library=$(dirname "$(ldconfig -p | awk '/libdnnl\.so\.2 / { print $NF; exit }')")
[ -e "$library/libdnnl.so.2" ] || fail 'libdnnl.so.2 was not found'
for name in libdnnl.so.2 libOpenCL.so.1; do
  [ -e "$library/$name" ] || fail "$library/$name is missing"
  printf '%s\n' "$library/$name"
done >>"$list"
tar -C / -czhf "$folder/deps.tar.gz" --transform 's,^usr/,,' \
  --transform 's,^lib/[^/]*-linux-gnu/,lib/,' \
  -T <(sed 's,^/,,' "$list" | sort -u) || fail 'deps.tar.gz could not be written'

pack_data() {  # PIECE NAME…: those that exist
  local piece=$1 name found=()
  shift
  for name in "$@"; do [ -e "$data/$name" ] && found+=("$name"); done
  [ ${#found[@]} -gt 0 ] || { printf 'gpu_pack: %s left out: none of it is in %s\n' "$piece" "$data"; return 0; }
  tar -C "$data" -czhf "$folder/$piece" "${found[@]}" || fail "$piece could not be written"
}
pack_data text.tar.gz ptb tinyshakespeare
cifar=cifar-10-batches-bin
for piece in 1 2 3; do
  pack_data cifar-$piece.tar.gz $cifar/data_batch_$((2 * piece - 1)).bin \
    $cifar/data_batch_$((2 * piece)).bin $([ $piece = 3 ] && echo $cifar/test_batch.bin $cifar/batches.meta.txt)
done
for piece in "$folder"/*.tar.gz; do
  bytes=$(stat -c %s "$piece")
  printf '%-60s %6.1f MiB\n' "$piece" "$(awk -v b="$bytes" 'BEGIN { print b / 1048576 }')"
  [ "$bytes" -lt $limit ] || fail "$piece is larger than $((limit >> 20)) MiB"
done
