#!/usr/bin/env bash
# Runs `bench compress` as a user would, on a small network and on a file: every algorithm has its
# row, with a plausible ratio and error; bad input ends with one line and exit code 2.
#   tests/test_bench.sh build/bench
set -u
program=$(realpath "$1") || exit 2
. "$(dirname "$0")/program.sh"
lab() { "$program" compress --threads 1 --steps 1 --step-ms 100 "$@"; }
# rows FILE: checks every row of a table, and that each of the expected specs has one.
#   spec, ratio of values from, to, ratio on the wire from, to, error from, to
rows() {
  awk '
    BEGIN { OFS = " " }
    NR == FNR { if (NF) low_high[$1] = $0; next }
    /^#/ || $1 == "compress" { next }
    {
      if (!($1 in low_high)) { print "not expected: " $0; bad = 1; next }
      split(low_high[$1], want)
      delete low_high[$1]
      for (i = 2; i <= 4; ++i)
        if ($i !~ /^[0-9.]+$/ || $i < want[2 * i - 2] || $i > want[2 * i - 1]) {
          print "column " i " of: " $0; bad = 1
        }
      if (($5 - 100 * (1 - $4 ^ 2)) ^ 2 > 0.02 * (1 + $4) ^ 2) { print "not the energy: " $0; bad = 1 }
      known = $1 !~ /^adacomp/  # whose codec is timed within the exchange only
      for (i = 6; i <= 11; ++i) if ($i !~ (known || i > 9 ? "^[0-9.]+$" : "^-$")) { print "column " i " of: " $0; bad = 1 }
      if (known && ($6 <= 0 || $8 <= 0) || $10 <= 0) { print "no time in: " $0; bad = 1 }
      if (($10 - $11) ^ 2 > 0.0002) { print "not a share of 100 ms: " $0; bad = 1 }
    }
    END { for (spec in low_high) { print "no row for " spec; bad = 1 } exit bad }' - "$1"
}
# bad PATTERN FLAG…: exit code 2, one line that names what is wrong, no table.
bad() {
  says 2 "$1" lab "${@:2}"
  [ "$(wc -l <err)" = 1 ] && [ ! -s out ] || fail "one line expected: $(cat err out)"
}

# ResNet-20: of 269,722 values 2,458 are in layers that travel dense.
lab --arch resnet20 >table || fail "exit code $?"
rows table <<'SPECS' || fail "$(cat table)"
bf16                                    1.97 2      1.97 2      0.0005 0.003
fp16                                    1.97 2      1.97 2      0.0001 0.01
topk:density=0.01,indices=delta,ramp=0,values=fp32         50   53     44   49     0.5    0.99
randomk:density=0.01,ramp=0,values=fp32                    50   53     50   53     0.95   1
scalecom:rate=100,beta=1,select=chunk,ramp=0,values=fp32   50   53     45   49     0.5    0.99
scalecom:rate=100,beta=1,select=exact,ramp=0,values=fp32   50   53     40   44     0.5    0.99
adacomp:bin=auto,factor=2,scale=layer          5    45     5    60     0.3    0.99
adacomp:bin=auto,factor=2,scale=bin            5    45     5    55     0.3    0.99
qsgd:bits=2,bucket=512,rounding=stochastic  13 16   13   16     0.5    10
qsgd:bits=4,bucket=512,rounding=stochastic  7  8    7    8      0.1    2
qsgd:bits=8,bucket=512,rounding=stochastic  3.8 4   3.8  4      0.005  0.1
powersgd:rank=2,values=fp32                         10   60     10   60     0.5    1
powersgd:rank=4,values=fp32                         5    40     5    40     0.5    1
SPECS
grep -Eq '^# .* 60 .* 12 .* [0-9.]+ ms$' table || fail "no time of a plan: $(tail -1 table)"
grep -q 'resnet20.* 269722 .* 59 ' table || fail "$(head -1 table)"
lab --arch resnet20 --compress qsgd:bits=4 --seed 2 >other || fail "exit code $?"
[ "$(grep -c '^[a-z0-9]*:' other)" = 1 ] || fail "one spec: $(cat other)"
[ "$(awk '/^qsgd:bits=4/ { print $4 }' table)" != "$(awk '/^qsgd/ { print $4 }' other)" ] || fail 'the seed changes nothing'

# ------------------------------------------------------------------------- gradients from a file
# safetensors FILE HEADER: with what comes on stdin as data.
safetensors() { { printf "\\x$(printf %02x ${#2})\\x00\\x00\\x00\\x00\\x00\\x00\\x00%s" "$2"; cat; } >"$1"; }
# 4096 numbers near 0.01: three digits and a byte that holds the exponent.
numbers() { local i; for i in 1 2 3 4 5; do seq -s '' -f '%03.0f<' 0 999 | tr -d '\n'; done | head -c 16384; }
one='{"w":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]}}'
numbers | safetensors one "$one"
lab --gradients one >dumped || fail "exit code $?"
grep -q ' one.* 4096 .* 1 ' dumped || fail "$(head -1 dumped)"
awk '$1 == "topk:density=0.01,indices=delta,ramp=0,values=fp32" { exit !($2 > 99 && $2 < 101 && $3 < 85 && $4 > 0.9 && $4 < 1) }' dumped || fail "$(cat dumped)"
awk '$1 == "powersgd:rank=4,values=fp32" { exit !($2 == 8 && $4 < 0.9) }' dumped || fail "$(cat dumped)"
numbers | head -c 8 | safetensors counters '{"steps":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}'
numbers | tr '0<' '\377\377' | safetensors nan "$one"
head -c 16384 /dev/zero | safetensors zeros "$one"
head -c 200 one >cut
bad 'none.safetensors' --gradients none.safetensors
bad 'cut' --gradients cut
bad 'counters' --gradients counters
bad 'nan: w' --gradients nan
bad 'zeros' --gradients zeros
bad 'resnet21' --arch resnet21
bad 'scalecom' --compress scalcom
bad 'rate=auto' --compress scalecom:rate=auto
bad '--step-ms' --step-ms -1
bad '--threads' --threads 0

finish
