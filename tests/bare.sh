#!/usr/bin/env bash
# Repeats a new user's first steps on a bare Debian 12: makes a root with debootstrap (minbase and ca-certificates), clones
# the last commit of this tree into it, and calls ./run train_resnet and ./run test there. By hand, before a release:
# half an hour. Needs root and debootstrap; proxies and certificates are those that apt has here.
#   tests/bare.sh [OPTION…] [COMMAND…]    other commands, each quoted as one word: tests/bare.sh './run doctor'
#     --keep          leave the root where it is, and say where
#     --with PATH     copy this file or folder to /root in the root first (may be repeated)
#     --offline       run the commands without a network
# Exit codes: that of the first command that fails, 1 if the root could not be made, 2 if something is missing.
set -u
tree=$(cd "$(dirname "$0")/.." && pwd) || exit 1
suite=bookworm

say() { printf 'bare: %s\n' "$*"; }
fail() { local code=$1; shift; say "$*" >&2; exit "$code"; }
tool() { command -v "$1" >/dev/null || fail 2 "needs $1 (apt-get install $2)"; }

# Runs COMMAND in the root, with /proc and /dev, in namespaces of its own, so that the mounts end with it.
if [ "${1:-}" = --inside ]; then
  root=$2 command=$3
  [ -z "${HEDDLE_OFFLINE:-}" ] || ip link set lo up || fail 1 'cannot start the loopback interface'
  mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || fail 1 'cannot mount /proc and /dev in the root'
  proxies=()
  for name in http_proxy https_proxy ftp_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || proxies+=("$name=${!name}")
  done
  # shellcheck disable=SC2016
  exec chroot "$root" /usr/bin/env -i "${proxies[@]}" container=chroot HOME=/root TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/bash -c 'cd /root/heddle && eval "$1"' bare "$command" </dev/null
fi

keep=0 with=() namespaces=(--mount --pid)
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=1 ;;
    --with) [ -e "${2:-}" ] || fail 2 "--with: no file or folder '${2:-}'"; with+=("$2"); shift ;;
    --offline) tool ip iproute2; namespaces+=(--net); export HEDDLE_OFFLINE=1 ;;
    -*) fail 2 "unknown option $1; known: --keep, --with PATH, --offline" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || set -- './run train_resnet' './run test'
[ "$(id -u)" = 0 ] || fail 2 'needs root: it makes a root file system and mounts /proc in it'
tool debootstrap debootstrap
tool unshare util-linux
tool git git
unshare "${namespaces[@]}" --fork true 2>/dev/null || fail 2 "needs namespaces (unshare ${namespaces[*]}), which are forbidden here"
[ -z "$(git -C "$tree" status --porcelain)" ] || say 'uncommitted changes are not included'

work=$(mktemp -d) || exit 1
root=$work/root
cleanup() { if [ $keep = 1 ]; then say "kept: $root"; else rm -rf --one-file-system "$work"; fi; }
trap cleanup EXIT
trap 'exit 130' INT TERM

size() { du -smx "$root" | cut -f 1; }
in_root() { unshare "${namespaces[@]}" --fork --kill-child "$0" --inside "$root" "$1"; }

# The archive from which this machine installs the suite; if there is none, debootstrap's default.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
  awk -v suite=$suite '$2 == suite { print $1; exit }')
begin=$SECONDS
say "making a $suite root${mirror:+ from $mirror}"
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" ${mirror:+"$mirror"} >"$work/debootstrap.log" 2>&1 ||
  { tail -n 20 "$work/debootstrap.log" >&2; fail 1 'debootstrap failed'; }
# Settings for downloads: proxies, certificates and the like. Nothing else is copied from this machine.
apt-config dump Acquire | grep -v '::IndexTargets' >"$root/etc/apt/apt.conf.d/99fetch"
for file in /etc/resolv.conf /etc/hosts; do [ ! -e $file ] || cat $file >"$root$file"; done
mkdir -p "$root/usr/local/share/ca-certificates"
cp -RL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null
chroot "$root" update-ca-certificates >>"$work/debootstrap.log" 2>&1
git clone --quiet --no-hardlinks "$tree" "$root/root/heddle" || fail 1 'cannot clone'
[ ${#with[@]} = 0 ] || cp -a "${with[@]}" "$root/root/" || fail 1 'cannot copy what --with names'
say "a root of $(size) MB in $((SECONDS - begin)) s; revision $(git -C "$tree" rev-parse --short HEAD)"

for command in "$@"; do
  say "\$ $command"
  status=0
  TIMEFORMAT='bare: %R s elapsed, %U s user and %S s system time'
  time in_root "$command" || status=$?
  say "exit code $status; the root has $(size) MB: $command"
  [ $status = 0 ] || exit $status
done
