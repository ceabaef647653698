#!/usr/bin/env bash
# Several hosts on one machine with links as slow as you like: network namespaces on a bridge, every
# link shaped both ways, real MPI over real TCP between them.
#   ./run netlab up 4 100mbit           four hosts, 10.77.0.1 …; a rate as tc takes it, or none
#   ./run netlab rate 10mbit            changes the rate of the links that are up
#   ./run netlab run build/train_resnet …   mpirun with one rank on each host
#   ./run netlab run --each 2 build/…       … with two, which share the host's link
#   ./run netlab bytes                  what each host's interface has sent and received
#   ./run netlab down
# Needs root, ip, tc, ethtool and Open MPI. Nothing leaves the machine. There is no added delay: netem
# is a kernel module that many machines lack.
set -euo pipefail
state=/run/heddle-netlab  # root's alone
fail() { printf 'netlab: %s\n' "$*" >&2; exit "${code:-2}"; }
usage() { sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; }
misused() { usage >&2; exit 2; }

hosts() { [ -f "$state/hosts" ] && wc -l <"$state/hosts" || echo 0; }
need_hosts() { [ "$(hosts)" -gt 0 ] || fail 'no hosts are up: ./run netlab up 4 100mbit'; }

# A token bucket on both ends of every link. Super-packets of up to 64 KiB and a burst of about one of
# them keep the shaping's own load at a few percent of the machine; headers are charged all the same.
# The burst is what an idle link may send at once, free of charge: 20 kB, 1.6 ms at 100 Mbit/s, and
# less on slower links, where that many bytes would be a whole exchange. Slower links have the same
# queue as one of 100 Mbit/s: a switch's memory does not shrink.
shape() {  # RATE
  local i end host device gso=16384 burst=20000 whole=${1%%[^0-9]*} mbit=100
  local -a queue=(latency 20ms)
  case $1 in
    none | *gbit) gso=65536 burst=128kb queue=(latency 10ms) ;;
    *mbit) mbit=$((10#0$whole)) ;;
    *kbit) mbit=$((10#0$whole / 1000)) ;;
  esac
  if ((mbit < 100)); then
    gso=$((mbit > 18 ? mbit * 164 : 3000)) burst=$((mbit > 18 ? mbit * 200 : 3700)) queue=(limit 250000)
  fi
  for ((i = 0; i < $(hosts); i++)); do
    ip netns exec "hl$i" ethtool -K e0 tso on gso on gro on >/dev/null
    ip -n "hl$i" link set e0 gso_max_size $gso
    for end in "hl$i e0" "hlsw p$i"; do
      read -r host device <<<"$end"
      if [ "$1" = none ]; then
        ip netns exec "$host" tc qdisc del dev "$device" root 2>/dev/null || true
      else
        ip netns exec "$host" tc qdisc replace dev "$device" root tbf rate "$1" burst $burst "${queue[@]}" ||
          fail "tc does not take the rate '$1' (10mbit, 100mbit, 1gbit, none)"
      fi
    done
  done
}

down() {
  local i
  for ((i = 0; i < $(hosts); i++)); do ip netns del "hl$i" 2>/dev/null || true; done
  ip netns del hlsw 2>/dev/null || true
  rm -f "$state/hosts" "$state/agent"
  rmdir "$state" 2>/dev/null || true
}

up() {  # N RATE
  local i n=$1
  [[ $n =~ ^[1-9][0-9]?$ ]] || fail "expected 1 to 99 hosts, found '$n'"
  [ "$(id -u)" = 0 ] || fail 'network namespaces need root'
  for i in ip tc ethtool mpirun; do
    command -v "$i" >/dev/null || fail "$i is missing: apt-get install iproute2 ethtool openmpi-bin"
  done
  [ "$(hosts)" = 0 ] || down
  mkdir -p -m 700 "$state"
  [ -O "$state" ] || fail "$state belongs to somebody else"
  trap down EXIT  # half a lab is none
  ip netns add hlsw || { code=1; fail 'no network namespaces here (or one named hlsw is left: ip netns del hlsw)'; }
  ip -n hlsw link add br0 type bridge && ip -n hlsw link set br0 up
  for ((i = 0; i < n; i++)); do
    ip netns add "hl$i"
    echo "10.77.0.$((i + 1)) slots=1" >>"$state/hosts"
    ip link add e0 netns "hl$i" type veth peer name "p$i" netns hlsw
    ip -n hlsw link set "p$i" master br0 && ip -n hlsw link set "p$i" up
    ip -n "hl$i" link set lo up
    ip -n "hl$i" addr add "10.77.0.$((i + 1))/24" dev e0 && ip -n "hl$i" link set e0 up
    # Linux's usual congestion control, whatever this machine has set for itself.
    ip -n "hl$i" route change 10.77.0.0/24 dev e0 src "10.77.0.$((i + 1))" congctl cubic ||
      fail "this kernel has no congestion control named cubic"
  done
  shape "$2"
  trap - EXIT
}

run() {  # [--each N] COMMAND…
  need_hosts
  local each=1 btl=tcp,self
  if [ "$1" = --each ]; then
    [[ ${2:-} =~ ^[1-9][0-9]?$ ]] && [ $# -gt 2 ] || misused
    each=$2
    shift 2
    btl+=,vader  # shared memory
  fi
  # Stands in for ssh: the last number of an address names the namespace; each has a host name of its
  # own, so that Open MPI sees different machines.
  cat >"$state/agent" <<'AGENT'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
i=$((${1##*.} - 1)); shift
exec ip netns exec hl$i unshare --uts sh -c "hostname hl$i; $*"
AGENT
  chmod +x "$state/agent"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  exec ip netns exec hl0 unshare --uts sh -c 'hostname hl0; exec "$@"' sh \
    mpirun -n "$(($(hosts) * each))" --hostfile "$state/hosts" --map-by "ppr:$each:node" --oversubscribe --bind-to none \
    --mca mpi_yield_when_idle 1 --mca plm_rsh_agent "$state/agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca pml ob1 --mca btl $btl --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_if_include 10.77.0.0/24 -x "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}" "$@"
}

bytes() {
  need_hosts
  local i
  for ((i = 0; i < $(hosts); i++)); do
    ip -n "hl$i" -s -j link show e0 |
      sed "s/.*\"rx\":{\"bytes\":\([0-9]*\).*\"tx\":{\"bytes\":\([0-9]*\).*/hl$i sent \2 received \1/"
  done
}

case ${1:-} in
  up) [ $# = 3 ] || misused; up "$2" "$3" ;;
  rate) [ $# = 2 ] || misused; need_hosts; shape "$2" ;;
  run) [ $# -gt 1 ] || misused; shift; run "$@" ;;
  bytes) bytes ;;
  down) down ;;
  -h | --help | help) usage ;;
  *) misused ;;
esac
