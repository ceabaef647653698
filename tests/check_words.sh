#!/usr/bin/env bash
# Fails on phrases that are not the field's English. docs/glossary.md has the terms to use instead. Reads comments and
# string literals of sources, and whole documents and scripts. A line that has to quote such a phrase says so with
# "check_words: quoted". Checks itself first on a sample of bad sentences.
#   tests/check_words.sh             the folders listed under `enforced`
#   tests/check_words.sh PATH…       these files and folders (git's path patterns), enforced or not
set -u
cd "$(dirname "$0")/.." || exit 1

# Folders whose text is clean and has to stay so.
enforced=(README.md cmake comm data docs/tools docs/glossary.md docs/readme_example.cpp tests/test_results.py
  docs CHANGELOG.md tests
  apps/session apps/log apps/checkpoint apps/models apps/report
  apps/benchmarks apps/cli apps/*.cpp
  core layers optim
  compress)

# An extended regular expression per line, then a tab and what to write instead. Case matters.
patterns='
// (Of|What|Whether it|How it|With what|From what|As far as) 	begin with a verb: "Returns …", "Holds …"
\b[Bb]ehind\b	after, following; its allowed uses are listed below
\b[Bb]eside\b	next to, alongside, during, in addition to
\b[Oo]wed?\b	residual, backlog, unapplied
\bowing\b	residual
\bgo(es)? on\b	continues, resumes
\bwent on\b	continued, resumed
\bgoing on\b	continuing, in progress
\b(a|the|each|every|one|last|first|of|[0-9]+) looks?\b	sample
\blooks (of|at every|in which)\b	samples
\b[Hh]opeless\b	diverged
\b[Hh]opeful\b	running
\b[Hh]ealthy\b	finite, running
\b(too_dear|too dear|dearer|dearest)\b	expensive
\b[Pp]atience\b	timeout
\balike\b	correlated, the same way, both
\bpacked (bytes|bucket|gradient|payload|exchange)s?\b	compressed
\bnoting\b	recording
\bput(s)? by\b	save
\bbroken off\b	interrupted
\bby itself\b	automatically
\b(are|is) looked (for|up at)\b	is searched for, is expected in
\bis (looked|gone) through\b	is traversed
\btakes? (part|turns) in what\b	participates in
\b(tell|tells|told) apart\b	distinguish
\bof old\b	earlier
\b(for|in) want of\b	without
\bnothing of ours\b	no folder of this project
\bwhat (is|was|has been) (left|missing|lost) (of|over)\b	the remainder
\bin one go\b	uninterrupted, at once
\bby and by\b	gradually
\bbut for\b	except
\bthe books\b	bookkeeping
\bgives? way\b	yields
\bwhere (that|it) spares\b	if it saves
\bat hand\b	available, current'

# Uses of these words that are the field's own.
allowed='\b([Hh]id(e|es|den|ing)|left|leav(e|es|ing)|lag(s|ged)?|falls?|fell)( [a-z]+){0,3} behind\b|\b(papers?|runs?|idea|reasons?) behind\b'

# Files that quote: measured data, inputs of tests, the licence, this list.
excluded=(docs/results.jsonl '*.svg' '*.png' 'tests/golden/*' 'tests/fuzz/*/*' LICENSE tests/check_words.sh)

# FILE -> its lines with everything but prose blanked out: C++ keeps comments and string literals, others everything.
prose() {
  case $1 in
    *.h | *.cpp | *.cu | *.cuh)
      awk '{ out = ""
        if (match($0, /\/\/.*/)) out = substr($0, RSTART)
        line = $0; sub(/\/\/.*/, "", line)
        while (match(line, /"([^"\\]|\\.)*"/)) {
          if (line !~ /^[ \t]*#[ \t]*include/) out = out " " substr(line, RSTART, RLENGTH)
          line = substr(line, RSTART + RLENGTH)
        }
        print out }' "$1" ;;
    *) cat "$1" ;;
  esac
}

expressions=$(cut -f1 <<<"$patterns" | sed '/^$/d')
advice() {  # LINE -> what to write instead, of the first pattern that matches
  local pattern instead
  while IFS=$'\t' read -r pattern instead; do
    [ -n "$pattern" ] && grep -qE -e "$pattern" <<<"$1" && { printf '%s' "$instead"; return; }
  done <<<"$patterns"
}

check() {  # FILE… -> offending lines on stdout, status 1 if there are any
  local file line status=0
  for file in "$@"; do
    while IFS= read -r line; do
      printf '%s:%s  -> %s\n' "$file" "$(sed -E 's/: */: /' <<<"$line")" "$(advice "${line#*:}")"
      status=1
    done < <(prose "$file" | sed -E "/check_words: quoted/s/.*//; s/$allowed//g" | grep -nE -f <(printf '%s\n' "$expressions"))
  done
  return $status
}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
printf '%s\n' 'int a;  // Of the last step' '// What it returns' 'say("stopped by a signal behind step 44");' \
  '// all of it is still owed' '// training goes on' '// the mean of a look' '// A hopeless run' '// too dear' \
  '// how alike they are' '// Patience of a rank' '// measured beside it' >"$scratch/bad.h"
[ "$(check "$scratch/bad.h" | wc -l)" = "$(wc -l <"$scratch/bad.h")" ] || { echo 'check_words: does not see a bad sentence:'; check "$scratch/bad.h"; exit 1; }
printf '%s\n' '// Returns the residual of the last step.' 'int owed = 1;' '#include "core/alike.h"' \
  '// Hides communication behind the backward pass.' >"$scratch/good.h"
check "$scratch/good.h" || { echo 'check_words: rejects a good sentence'; exit 1; }

[ $# -gt 0 ] || set -- "${enforced[@]}"
files=()
while IFS= read -r file; do
  for pattern in "${excluded[@]}"; do
    # shellcheck disable=SC2053
    [[ $file == $pattern ]] && continue 2
  done
  files+=("$file")
done < <(if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then git ls-files -- "$@"; else find "$@" -type f; fi)
[ ${#files[@]} -gt 0 ] || { echo "check_words: no file of $*"; exit 1; }
if check "${files[@]}"; then echo "check_words: ${#files[@]} files, nothing to rewrite"; else exit 1; fi
