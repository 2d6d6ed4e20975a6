#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME (default 10s).
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r f; do
  for t in $(grep -oE '^func Fuzz[A-Za-z0-9_]+' "$f" | awk '{print $2}'); do
    echo "== $t ($(dirname "$f"))"
    go test -run='^$' -fuzz="^$t\$" -fuzztime="${FUZZTIME:-10s}" -fuzzminimizetime=1x "./$(dirname "$f")"
  done
done
