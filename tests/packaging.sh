#!/usr/bin/env bash
# Tries the ways of installing other than building where there is a network, each in bare Debian roots (tests/bare.sh):
#   1. makes the package (./run package), and a folder of packages (./run setup --download), in one root;
#   2. in a second root, which has no compiler, installs the package, trains with every program, with threads and with
#      MPI, and purges it: no file may be left; then a separate project with the package's libraries;
#   3. in a third root, without a network, builds and trains with the folder of packages.
# By hand, before a release: half an hour. Needs what tests/bare.sh needs; the commit, not the working tree, is tried.
#   tests/packaging.sh [1|2|3]…    only these steps; 2 and 3 take what step 1 has left in build-package/bare
# Exit codes: that of the first step that fails; 2 if something is missing.
set -u
cd "$(dirname "$0")/.." || exit 1
made=build-package/bare

say() { printf 'packaging: %s\n' "$*"; }

step1() {
  local log root code=0
  log=$(mktemp) || return 1
  tests/bare.sh --keep './run setup --download /root/packages' './run package' | tee "$log"
  code=${PIPESTATUS[0]}
  root=$(sed -n 's/^bare: kept: //p' "$log")
  rm -f "$log"
  rm -rf "$made" && mkdir -p "$made" || return 1
  [ "$code" != 0 ] || mv "$root"/root/heddle/build-package/heddle_*.deb "$root/root/packages" "$made/" || code=1
  [ -z "$root" ] || rm -rf --one-file-system "${root%/root}"
  return "$code"
}

# Each command runs in the clone's folder; what the programs write there, and the package's files, are looked at.
install='apt-get update -qq && apt-get install -qq -y --no-install-recommends'
train='for command in \
    "train_resnet --steps 20 --output-dir /tmp/runs/resnet" \
    "train_resnet --steps 20 --learners 4 --batch-size 16 --compress scalecom:rate=100 --output-dir /tmp/runs/four" \
    "train_lm --steps 20 --output-dir /tmp/runs/lm" "train_gcn --steps 5 --output-dir /tmp/runs/gcn" \
    "train_dpgan --steps 5 --learners 2 --output-dir /tmp/runs/dpgan" \
    "mpirun --allow-run-as-root --oversubscribe -n 2 train_resnet --steps 20 --output-dir /tmp/runs/mpi"; do
  echo "\$ $command"; (cd /tmp && exec $command) || exit 1
done; for run in resnet four lm gcn dpgan mpi; do ls /tmp/runs/$run/report.html || exit 1; done; ls /usr/share/man/man1/train_resnet.1*'
purge='dpkg -L heddle | while read -r file; do [ -d "$file" ] || echo "$file"; done >/tmp/files && ! command -v g++ &&
  [ "$(wc -l </tmp/files)" -gt 100 ] && apt-get purge -qq -y heddle && while read -r file; do
  [ ! -e "$file" ] || { echo "left: $file"; exit 1; }; done </tmp/files'
library='cmake -S tests/consumer -B /tmp/consumer -G Ninja -DCMAKE_BUILD_TYPE=Release && ninja -C /tmp/consumer && ctest --test-dir /tmp/consumer --output-on-failure'

step2() {
  local packages
  packages=$(sed -n 's/^ *set(CPACK_DEBIAN_PACKAGE_SUGGESTS "\(.*\)")/\1/p' CMakeLists.txt | tr -d ,)
  tests/bare.sh --with "$(ls $made/heddle_*.deb)" "$install openmpi-bin /root/heddle_*.deb" "$train" "$purge" \
    "$install $packages ninja-build /root/heddle_*.deb" "$library"
}

step3() {
  tests/bare.sh --offline --with $made/packages '! getent hosts deb.debian.org' \
    'HEDDLE_PACKAGES=/root/packages ./run --yes minimal_train' './run train_resnet --epochs 1'
}

[ $# -gt 0 ] || set -- 1 2 3
for step in "$@"; do
  case $step in [123]) ;; *) say "unknown step $step; known: 1, 2, 3" >&2; exit 2 ;; esac
  say "step $step"
  "step$step" || { code=$?; say "step $step failed" >&2; exit $code; }
done
say 'all steps done'
