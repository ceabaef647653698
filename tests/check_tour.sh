#!/usr/bin/env bash
# Everything that docs/tour.md names in backticks must exist: a `folder/file.h` (a path), and a
# `function()` or `Class::function()` (found by name in the sources). Fenced code is not looked at.
# Checks itself first on names that do not exist.
#   tests/check_tour.sh [FILE]
set -u
cd "$(dirname "$0")/.." || exit 1

check() {  # FILE -> what is missing, status 1 if anything is
  local name status=0 count=0 stem
  while IFS= read -r name; do
    case $name in
      std::* | *' '*'/'*) continue ;;
      *'('*)
        stem=${name%%(*}
        stem=${stem##*::}
        stem=${stem##*.}
        stem=${stem##*>}
        case $stem in *[!A-Za-z0-9_]* | '') continue ;; esac
        count=$((count + 1))
        grep -rqwE --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' \
          "$stem" core layers data comm compress optim apps 2>/dev/null ||
          { echo "$1: no function $name in the sources"; status=1; } ;;
      */* | *.h | *.cpp | *.cu | *.cuh | *.md | *.txt | *.sh | *.py)
        case $name in *[!A-Za-z0-9_./-]* | http* | ../* | /* | build/* | runs/*) continue ;; esac
        count=$((count + 1))
        [ -e "$name" ] || { echo "$1: no file $name"; status=1; } ;;
    esac
  done < <(awk '/^```/ { code = !code; next } !code' "$1" | grep -oE '`[^`]+`' | tr -d '`' | sort -u)
  echo "$1: $count names looked up"
  [ $count -gt 0 ] && return $status
  return 1
}

scratch=$(mktemp) || exit 1
trap 'rm -f "$scratch"' EXIT
for broken in 'core/no_such_file.h' 'no_such_function()' 'Tape::no_such_function(x)'; do
  # shellcheck disable=SC2016
  printf 'See `%s`.\n' "$broken" >"$scratch"
  if check "$scratch" >/dev/null; then echo "check_tour: did not see $broken"; exit 1; fi
done

check "${1:-docs/tour.md}"
