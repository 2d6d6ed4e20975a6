# shellcheck shell=bash
# Which Debian the labs' trees are made of; source it after lib.sh.
SUITE=bookworm # systemd of later Debian suites refuses machines with cgroup v1; its kernel is the one that workers' tests run

# sources: the machine's own where they are of the suite that is wanted (they may name a mirror), else none: mmdebstrap then uses
# Debian's.
sources() {
  local file=/etc/apt/sources.list.d/debian.sources
  [ -e "$file" ] || file=/etc/apt/sources.list
  if ! grep -qE "^(Suites:|deb ).*\b$SUITE\b" "$file" 2>/dev/null; then
    need_file /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    return 0
  fi
  echo "$file"
}

# make_tree NAME VARIANT CLEANUP PACKAGE...: CLEANUP runs on the machine in the tree's root.
make_tree() {
  local variant=$2 cleanup=$3 list from=() file=$LAB/trees/$1.tar
  shift 3
  need mmdebstrap mmdebstrap
  mapfile -t from < <(sources)
  list=$(IFS=,; echo "$*")
  mmdebstrap --mode=root "--variant=$variant" --format=tar --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
    "--include=$list" --customize-hook="cd \"\$1\" && rm -rf var/cache/apt/* var/lib/apt/lists/* ${cleanup//$'\n'/ }" \
    "$SUITE" "$file.new" "${from[@]}"
  mv "$file.new" "$file"
}
