#!/usr/bin/env bash
# Lines per folder, with the change against a commit if one is given. Warns of long files; fails when a part of the tree
# is over its budget. Budgets may only fall, except by a dated decision (docs/decisions.md). The stack's are in lines of
# code, which are neither empty nor only a comment, so that nobody skimps on explanations; that of apps is in lines.
#   tests/check_lines.sh [COMMIT]
set -u
cd "$(dirname "$0")/.." || exit 1
base=${1:-}
long=450
budgets=(  # NUMBER lines|code FOLDER…
  '17405 code core layers data comm optim'
  '5514 code compress'
  '17720 lines apps'
)

sources() { find "$1" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) "${@:2}"; }
lines() { sources "$1" -exec cat {} + | wc -l; }
code() { sources "$1" -exec cat {} + | awk 'NF && $1 !~ /^\/\// { n++ } END { print n + 0 }'; }
count_then() {
  git grep -c '' "$base" -- "$1/*.h" "$1/*.cpp" "$1/*.cu" "$1/*.cuh" | awk -F: '{ n += $NF } END { print n + 0 }'
}

printf '%-10s %7s %7s' folder lines code
[ -n "$base" ] && printf ' %8s' change
printf '\n'
for folder in core layers data comm compress optim apps tests; do
  printf '%-10s %7d %7d' "$folder" "$(lines "$folder")" "$(code "$folder")"
  [ -n "$base" ] && printf ' %+8d' $(($(lines "$folder") - $(count_then "$folder")))
  printf '\n'
  sources "$folder" -exec wc -l {} \; | awk -v long=$long '$1 > long { print "warning: " $2 " has " $1 " lines, more than " long }'
done

status=0
for budget in "${budgets[@]}"; do
  read -r most unit folders <<<"$budget"
  found=0
  for folder in $folders; do found=$((found + $("$unit" "$folder"))); done
  printf '%s: %d of %d lines%s\n' "$folders" $found "$most" "$([ "$unit" = lines ] || echo ' of code')"
  [ $found -le "$most" ] || { echo "error: $folders is over its budget"; status=1; }
done
exit $status
