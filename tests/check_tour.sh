#!/usr/bin/env bash
# Everything that README.md, docs/tour.md, docs/flags.md, docs/run-folder.md and docs/howto/ name in backticks must exist:
# a `folder/file.h` (a path), and a `function()` or `Class::function()` (found by name in the sources). In fenced code,
# commands that start with ./run or one of our programs must use existing verbs and flags. Links must have a target.
# Checks itself first on names that do not exist.
#   tests/check_tour.sh [FILE…]
set -u
cd "$(dirname "$0")/.." || exit 1

check() {  # FILE -> what is missing, status 1 if anything is
  local name status=0 count=0 stem
  while IFS= read -r name; do
    case $name in
      std::* | find_package* | *' '*'/'*) continue ;;
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
  [ $count -gt 0 ] || [ "$1" != docs/tour.md ] || return 1
  return $status
}

flags=$(tr '\n' ' ' <<<"$(cat apps/cli/*options.cpp apps/report/report.cpp)" | grep -oE 'flags\.add\( *"[a-z0-9-]+"' | sed 's/.*"\(.*\)"/--\1/')
verbs=$(sed -n '/^case \$verb in/,/^esac/s/^  \([a-z_| -]*\)).*/\1/p' run | tr '|' ' ')

commands() {  # FILE -> unknown verbs and flags in its fenced code, status 1 if any
  local line words word verb status=0
  while IFS= read -r line; do
    line=${line%%  #*}
    case $line in
      ./run\ *) verb=${line#./run }; verb=${verb%% *} ;;
      *build/train_resnet\ * | *build/train_lm\ *) verb=train_resnet; line="x ${line#*build/}" ;;
      *) continue ;;
    esac
    [[ " $(echo $verbs) " == *" $verb "* ]] || { echo "$1: no verb $verb: $line"; status=1; }
    case $verb in train_resnet | train_lm | report | watch) ;; *) continue ;; esac
    read -ra words <<<"$line"
    for word in "${words[@]}"; do
      [[ $word == --* ]] || continue
      word=${word%%=*}
      grep -qxF -e "$word" -e "${word/--no-/--}" <<<"$flags" || { echo "$1: no flag $word: $line"; status=1; }
    done
  done < <(awk '/^```/ { code = !code; next } code' "$1")
  return $status
}

links() {  # FILE -> relative links that lead nowhere
  local target status=0
  while IFS= read -r target; do
    case $target in http* | '#'*) continue ;; esac
    [ -e "$(dirname "$1")/${target%%#*}" ] || { echo "$1: no $target to link to"; status=1; }
  done < <(grep -oE '\]\([^) ]+\)' "$1" | sed 's/^](//; s/)$//')
  return $status
}

# FILE -> references in fenced text (compress/scalecom.cpp:92) to a line that explains nothing
places() {
  local place file status=0
  while IFS= read -r place; do
    place=${place# } file=${place%:*}
    sed -n "${place##*:}p" "$file" 2>/dev/null | grep -q 'explain\|ledger.book(' ||
      { echo "$1: nothing is explained at $place; there it is at $(grep -ns 'explain\|ledger.book(' "$file" | cut -d: -f1 | tr '\n' ' ')"; status=1; }
  done < <(awk '/^```/ { code = !code; next } code' "$1" | grep -oE ' (core|layers|optim|comm|compress)/[a-z_/]+\.cpp:[0-9]+' | sort -u)
  return $status
}

scratch=$(mktemp) || exit 1
trap 'rm -f "$scratch"' EXIT
for broken in 'core/no_such_file.h' 'no_such_function()' 'Tape::no_such_function(x)'; do
  # shellcheck disable=SC2016
  printf 'See `%s`.\n' "$broken" >"$scratch"
  if check "$scratch" >/dev/null; then echo "check_tour: did not see $broken"; exit 1; fi
done

for broken in './run no_such_verb' './run train_lm --no-such-flag' 'build/train_resnet --lerners 4'; do
  printf '```\n%s\n```\n' "$broken" >"$scratch"
  if commands "$scratch" >/dev/null; then echo "check_tour: did not see $broken"; exit 1; fi
done
printf '```\n  1.0 comm select core/tape.cpp:1\n```\n' >"$scratch"
if places "$scratch" >/dev/null; then echo 'check_tour: did not see a stale place'; exit 1; fi
printf '[x](no-such-page.md)\n' >"$scratch"
if links "$scratch" >/dev/null; then echo 'check_tour: did not see a broken link'; exit 1; fi

status=0
[ $# -gt 0 ] || set -- docs/tour.md docs/flags.md docs/run-folder.md docs/howto/*.md README.md
for page in "$@"; do
  case $page in */README.md) ;; *) check "$page" || status=1 ;; esac
  commands "$page" || status=1
  links "$page" || status=1
  places "$page" || status=1
done
exit $status
