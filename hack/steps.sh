# shellcheck shell=bash
# Steps of a lab that run once per input; source it. The caller sets LAB, the folder in the cache that everything is made in.
mkdir -p "$LAB"/{bin,stamps,logs}

# hash_of INPUT...: one hash of the inputs. A file counts by its content, a folder by names and contents, @STEP by that step's own
# inputs (hashing what it made would read hundreds of megabytes), anything else as a word.
hash_of() {
  local input
  for input in "$@"; do
    case $input in
      @*) echo "$input $(cat "$LAB/stamps/${input#@}")" ;;
      /*) if [ -d "$input" ]; then (cd "$input" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
          else echo "$(basename "$input") $(sha256sum <"$input")"; fi ;;
      *) echo "$input" ;;
    esac
  done | sha256sum | cut -d' ' -f1
}

# unchanged NAME HASH: has this step run to its end with these inputs?
unchanged() { [ "$(cat "$LAB/stamps/$1" 2>/dev/null)" = "$2" ]; }

# step NAME OUTPUT INPUT... -- COMMAND...: runs COMMAND unless OUTPUT exists and the inputs are those it was made from; COMMAND itself,
# a function's text included, is one of them. Its output goes to a log whose end is shown if it fails. The lock lets two callers share
# one cache: the second waits and then has nothing to do. Call it as a plain command: under `if` or `||` bash would ignore errors in it.
# STEP_SAYS, if set, is said before COMMAND runs: what a person waits for, and how long.
step() {
  local name=$1 output=$2 inputs=() hash status log
  shift 2
  while [ "$1" != -- ]; do inputs+=("$1"); shift; done
  shift
  hash=$(hash_of "${inputs[@]}" "command: $*" "$(declare -f "$1" || true)")
  log=$LAB/logs/$name.log
  if [ -e "$output" ] && unchanged "$name" "$hash"; then return 0; fi
  exec 8>"$LAB/stamps/.$name.lock"
  flock 8
  if ! [ -e "$output" ] || ! unchanged "$name" "$hash"; then
    rm -f "$LAB/stamps/$name"
    [ -z "${STEP_SAYS:-}" ] || say "$STEP_SAYS (log: $log)"
    set +e
    (set -e; exec 3>&2 >"$log" 2>&1 8>&-; progress=3; timed "$name" "$@")
    status=$?
    set -e
    [ "$status" = 0 ] || { echo "$name failed; the end of $log:" >&2; tail -n 30 "$log" >&2; exit "$status"; }
    echo "$hash" >"$LAB/stamps/$name"
  fi
  exec 8>&-
}

# timed NAME COMMAND...: runs it and prints name and seconds.
progress=2 # where to
timed() {
  local name=$1 start=${EPOCHREALTIME/./} spent
  shift
  "$@"
  spent=$(((${EPOCHREALTIME/./} - start) / 100000))
  printf '   %-24s %5d.%d s\n' "$name" $((spent / 10)) $((spent % 10)) >&"$progress"
}
