#!/usr/bin/env bash
# Fails on an include that violates the table of who may include whom. Checks itself first on a file that
# breaks the table, so that a check which can no longer fail is noticed.
#   tests/check_includes.sh [ROOT]
set -u

# folder: which of our folders, or files of a folder, it may include. Subfolders of apps are folders, too.
table='
core:     core
layers:   core layers
data:     core data
comm:     core comm
compress: core compress comm/communicator.h comm/ledger.h layers/activation.h layers/conv2d.h
optim:    core comm compress optim
apps:     core layers data comm compress optim apps
apps/cli:        core layers data comm compress optim apps/cli
apps/log:        core layers data comm compress optim apps/cli apps/log
apps/checkpoint: core layers data comm compress optim apps/cli apps/log apps/checkpoint
apps/models:     core layers data comm compress optim apps/cli apps/models
apps/report:     core layers data comm compress optim apps/cli apps/log apps/report
apps/session:    core layers data comm compress optim apps/cli apps/log apps/checkpoint apps/models apps/report apps/session
apps/benchmarks: core layers data comm compress optim apps
tests:    core layers data comm compress optim apps tests'
# Libraries that only the programs and the tests may use; core's .cpp files also read JSON.
apps_only='fmt/ toml++/ nlohmann/ doctest/'

check() {  # ROOT -> violations on stdout, status 1 if any
  cd "$1" || return 2
  local files
  mapfile -t files < <(find core layers data comm compress optim apps tests -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
    -not -path 'tests/consumer/*' 2>/dev/null | sort)
  [ ${#files[@]} -gt 0 ] || { echo "no source files under $1"; return 2; }
  awk -v table="$table" -v apps_only="$apps_only" '
    # "apps/log" of apps/log/summary.h, "core" of core/tensor.h
    function room_of(path) {
      if (match(path, /^apps\/[^\/]+\//)) return substr(path, 1, RLENGTH - 1)
      sub(/\/.*/, "", path); return path
    }
    BEGIN {
      n = split(table, lines, "\n")
      for (i = 1; i <= n; ++i) {
        k = split(lines[i], words, /[: ]+/)
        for (j = 2; j <= k; ++j) if (words[1] != "" && words[j] != "") may[words[1], words[j]] = 1
      }
      m = split(apps_only, outside, " ")
    }
    /^[ \t]*#[ \t]*include/ {
      folder = room_of(FILENAME)
      where = FILENAME ":" FNR ": "
      if (match($0, /"[^"]+"/)) {
        path = substr($0, RSTART + 1, RLENGTH - 2)
        if (path !~ /\//) { print where "\"" path "\" names no folder"; bad = 1; next }
        target = path; sub(/\/.*/, "", target)
        if (!((folder, target) in may) && !((folder, room_of(path)) in may) && !((folder, path) in may)) {
          print where folder " must not include " path; bad = 1
        }
      } else if (match($0, /<[^>]+>/) && folder !~ /^(apps|tests)/) {
        path = substr($0, RSTART + 1, RLENGTH - 2)
        for (i = 1; i <= m; ++i) if (index(path, outside[i]) == 1 &&
              !(FILENAME ~ /^core\/[^\/]*\.cpp$/ && outside[i] == "nlohmann/")) {
          print where folder " must not use <" path ">"; bad = 1
        }
      }
    }
    END { exit bad }' "${files[@]}"
}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{core,layers,compress,apps/{log,session}}
echo '#include "core/tensor.h"' >"$scratch/layers/good.h"
echo '#include "comm/communicator.h"' >"$scratch/compress/good.h"
echo '#include <nlohmann/json.hpp>' >"$scratch/core/good.cpp"
echo '#include "apps/log/summary.h"' | tee "$scratch/apps/good.cpp" >"$scratch/apps/session/good.h"
if ! (check "$scratch") >/dev/null; then echo 'check_includes: rejects a good include'; exit 1; fi
for broken in 'core/a.h "layers/linear.h"' 'layers/b.h "optim/sgd.h"' 'compress/c.h "comm/mpi_communicator.h"' \
  'core/d.h "tensor.h"' 'core/e.h <fmt/format.h>' 'apps/log/g.h "apps/session/session.h"' 'apps/session/h.h "apps/benchmarks/bench.h"' \
  'core/f.h <nlohmann/json.hpp>'; do
  echo "#include ${broken#* }" >"$scratch/${broken%% *}"
  if (check "$scratch") >/dev/null; then echo "check_includes: did not see $broken"; exit 1; fi
  rm "$scratch/${broken%% *}"
done

root=${1:-$(cd "$(dirname "$0")/.." && pwd)}
if (check "$root"); then echo 'includes follow the table'; else exit 1; fi
