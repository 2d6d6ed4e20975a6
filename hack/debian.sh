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
