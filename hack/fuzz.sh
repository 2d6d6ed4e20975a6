#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME (default 10s; 10000000x means that many inputs), or those whose name matches the
# regular expression FUZZ, and ends with the number of inputs of each and their rate. It runs at low priority.
set -euo pipefail
cd "$(dirname "$0")/.."
time="${FUZZTIME:-10s}"
summary=$(mktemp)
log=$(mktemp)
trap 'rm -f "$summary" "$log"' EXIT
renice -n 10 -p $$ >/dev/null
while read -r f; do
  for t in $(grep -oE '^func Fuzz[A-Za-z0-9_]+' "$f" | awk '{print $2}'); do
    [[ "$t" =~ ${FUZZ:-.} ]] || continue
    echo "== $t ($(dirname "$f"))"
    # A count may take hours; go test's own limit must not cut it short. An input is minimised only if it fails.
    begun=$(date +%s%N)
    go test -run='^$' -fuzz="^$t\$" -fuzztime="$time" -fuzzminimizetime=1x -timeout=0 "./$(dirname "$f")" | tee "$log"
    execs=$(grep -oE 'execs: [0-9]+' "$log" | tail -1 | awk '{print $2}')
    awk -v t="$t" -v d="$(dirname "$f")" -v n="${execs:-0}" -v ns=$(($(date +%s%N) - begun)) \
      'BEGIN { printf "%-24s %-24s %12d inputs %8d/s\n", t, d, n, n / (ns / 1e9) }' >>"$summary"
  done
done < <(grep -rlE '^func Fuzz' --include='*_test.go' . | sort)
[ -s "$summary" ] || { echo "no fuzz target matches '${FUZZ:-}'" >&2; exit 1; }
echo
cat "$summary"
awk '{ n += $3 } END { printf "%d inputs, no failure\n", n }' "$summary"
