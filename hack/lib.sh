# Shared by the scripts of hack/: one cache folder, idempotent installation that says what it does. Source it.

# cache_dir is the one folder for everything the scripts download or build (GEMEL_CACHE to move it).
cache_dir() {
  local d="${GEMEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gemel}"
  mkdir -p "$d/bin"
  echo "$d"
}

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

# need COMMAND PACKAGE: installs a Debian package when the command is missing.
need() {
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || install_package "$1" "$2"
}

# need_file PATH PACKAGE: installs a Debian package when the file is missing.
need_file() { [ -e "$1" ] || install_package "$1" "$2"; }

install_package() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing '$1': install the Debian package '$2' (apt-get install $2)" >&2
    return 1
  fi
  say "installing $2 (for $1), once"
  [ -n "${GEMEL_APT_UPDATED:-}" ] || { apt-get update -qq && export GEMEL_APT_UPDATED=1; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}

# go_tool MODULE/PATH VERSION: builds a Go tool once into the cache's bin, a stamp file names the version. Tools are no `tool` directives
# of go.mod: those share one choice of versions with the program, and controller-gen, staticcheck and crd-ref-docs would raise versions of
# libraries that it is built with (kube-openapi, fsnotify, x/tools, mergo, cast).
go_tool() {
  local c name stamp
  c=$(cache_dir)
  name=$(basename "$1")
  case "$name" in v[0-9]*) name=$(basename "$(dirname "$1")") ;; esac
  stamp="$c/bin/.$name@$2"
  [ -x "$c/bin/$name" ] && [ -e "$stamp" ] && return 0
  say "building $name $2, once"
  GOBIN="$c/bin" GOFLAGS= go install "$1@$2"
  rm -f "$c/bin/.$name@"* && touch "$stamp"
}
