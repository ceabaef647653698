#!/usr/bin/env bash
# Lines per folder, with the change against a commit if one is given. Warns of long files; fails when
# the stack (core, layers, optim, comm, compress, data) has 16,000 lines of code or more: lines that
# are neither empty nor only a comment, so that explanations cost nothing.
#   tests/check_lines.sh [COMMIT]
set -u
cd "$(dirname "$0")/.." || exit 1
base=${1:-}
limit=16000
long=450
stack='core layers data comm compress optim'

count_now() {
  find "$1" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec cat {} + 2>/dev/null | wc -l
}
code() {
  find "$1" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec cat {} + 2>/dev/null | awk 'NF && $1 !~ /^\/\// { n++ } END { print n + 0 }'
}
count_then() {
  git grep -c '' "$base" -- "$1/*.h" "$1/*.cpp" "$1/*.cu" "$1/*.cuh" | awk -F: '{ n += $NF } END { print n + 0 }'
}

all=0 total=0
printf '%-10s %7s %7s' folder lines code
[ -n "$base" ] && printf ' %8s' change
printf '\n'
for folder in $stack apps tests; do
  lines=0 coded=0
  [ -d "$folder" ] && lines=$(count_now "$folder") && coded=$(code "$folder")
  printf '%-10s %7d %7d' "$folder" "$lines" "$coded"
  [ -n "$base" ] && printf ' %+8d' $((lines - $(count_then "$folder")))
  printf '\n'
  case " $stack " in *" $folder "*) all=$((all + lines)) total=$((total + coded)) ;; esac
done
printf '%-10s %7d %7d (core … optim; its code must stay under %d)\n' stack "$all" "$total" "$limit"
for folder in $stack; do
  [ -d "$folder" ] || continue
  find "$folder" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec wc -l {} \; | awk -v long=$long '$1 > long { print "warning: " $2 " has " $1 " lines, more than " long }'
done
[ "$total" -lt "$limit" ]
