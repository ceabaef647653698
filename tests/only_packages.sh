#!/usr/bin/env bash
# Runs a command with a PATH that holds no more than a bare Debian has after `./run test`: commands of the packages that
# ./run installs for it, of their dependencies and of Debian's minimal system. So a command that a test calls but nobody
# installs is missing here, too. Variables that name folders of headers, libraries or modules are unset; files at absolute
# paths are not hidden.
#   tests/only_packages.sh [--with PACKAGE]… COMMAND…      --with: as if ./run installed this package, too
#   tests/only_packages.sh [--with PACKAGE]… --list        what would be there
# Without dpkg the command runs as it is.
set -u
cd "$(dirname "$0")/.." || exit 1
named=()
while [ "${1:-}" = --with ]; do named+=("${2:-}"); shift 2; done
[ $# -gt 0 ] || { sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0"; exit 2; }
if ! command -v dpkg-query >/dev/null; then
  echo 'skipped: a PATH of named packages only (no dpkg here)'
  exec "$@"
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
mapfile -t -O ${#named[@]} named < <(./run setup --list test)

# Prints, of what is installed, the named packages, those that every Debian has (and apt), and all that these depend on;
# of alternatives ("a | b"), all that are installed.
closure() {
  dpkg-query -W -f '${db:Status-Status}\t${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n' |
    awk -F'\t' -v named="${named[*]} apt" '
      function plain(text) { gsub(/\([^)]*\)|:[a-z0-9]+|[ \t]/, "", text); return text }
      $1 != "installed" { next }
      { depends[$2] = depends[$2] "," plain($5); providers[$2] = providers[$2] " " $2 }
      { n = split(plain($6), list, ","); for (i = 1; i <= n; i++) providers[list[i]] = providers[list[i]] " " $2 }
      $3 == "yes" || $4 == "required" { named = named " " $2 }
      function add(name,   i, n, list) {
        n = split(providers[name], list, " ")
        for (i = 1; i <= n; i++) if (!(list[i] in chosen)) { chosen[list[i]] = 1; queue[++last] = list[i] }
      }
      END {
        n = split(named, wanted, " ")
        for (i = 1; i <= n; i++) add(wanted[i])
        for (at = 1; at <= last; at++) {
          m = split(depends[queue[at]], wanted, /[,|]/)
          for (j = 1; j <= m; j++) if (wanted[j] != "") add(wanted[j])
        }
        for (name in chosen) print name
      }'
}

mapfile -t packages < <(closure)
dpkg-query -L "${packages[@]}" | grep -E '^(/usr)?/s?bin/[^/]*$' | sort -u >"$work/files"
xargs -d '\n' realpath -qe <"$work/files" | sort -u >"$work/targets"
# Links each by its own name and by others that lead to it, such as those of update-alternatives.
while read -r path; do ln -sf "$path" "$work/bin/${path##*/}"; done < <(
  find /usr/bin /usr/sbin -maxdepth 1 ! -type d >"$work/here"
  xargs -d '\n' realpath -qm <"$work/here" | paste "$work/here" - |
    awk -F'\t' 'NR == FNR { owned[$1]; next } $2 in owned { print $1 }' "$work/targets" -)
# If the alternative in use is of some other package, links the best one of these packages.
for name in /var/lib/dpkg/alternatives/*; do
  name=${name##*/}
  [ ! -e "$work/bin/$name" ] || continue
  path=$(update-alternatives --query "$name" 2>/dev/null | awk '
    NR == FNR { owned[$1]; next }
    /^Alternative: / { path = $2 }
    /^Priority: / && path in owned && (best == "" || $2 > most) { best = path; most = $2 }
    END { print best }' "$work/targets" -)
  [ -z "$path" ] || ln -s "$path" "$work/bin/$name"
done
# Of what this machine got by other means than its package, links the commands that are called.
for name in "${named[@]}"; do
  case " ${packages[*]} " in *" $name "*) continue ;; esac
  case $name in
    cmake) commands='cmake ctest' ;;
    g++) commands='g++ gcc c++ cc' ;;
    ninja-build) commands=ninja ;;
    openmpi-bin) commands='mpirun mpiexec orted' ;;
    libopenmpi-dev) commands=mpicxx ;;
    *) commands=$name ;;
  esac
  for name in $commands; do
    path=$(command -v "$name") && ln -sf "$path" "$work/bin/$name"
  done
done

if [ "$1" = --list ]; then find "$work/bin" -type l -printf '%f -> %l\n' | sort; exit 0; fi
echo "PATH holds $(find "$work/bin" -type l | wc -l) commands of ${#packages[@]} packages"
unset CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH CMAKE_PREFIX_PATH PKG_CONFIG_PATH PYTHONPATH PYTHONHOME PERL5LIB
export PATH=$work/bin
"$@"
