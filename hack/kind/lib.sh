# shellcheck shell=bash
# Shared by the scripts of hack/kind; source it. Everything they make is under $LAB, except mounts, a bridge and Debian packages.
KIND_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$KIND_DIR/../lib.sh"
LAB=$(cache_dir)/kind
. "$KIND_DIR/../steps.sh"

# mod_version FOLDER MODULE: the version that FOLDER's go.mod requires; go.mod is the one place that names it.
mod_version() { awk -v m="$2" '{ for (i = 1; i < NF; i++) if ($i == m && $(i+1) ~ /^v/) { print $(i+1); exit } }' "$KIND_DIR/$1/go.mod"; }

# build_go FOLDER OUTPUT LDFLAGS [PACKAGE...]: builds packages of the module in FOLDER, static and the same on every machine.
build_go() {
  local folder=$1 output=$2 ldflags=$3
  shift 3
  cd "$KIND_DIR/$folder"
  CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags "-s -w $ldflags" -o "$output" "${@:-.}"
}
