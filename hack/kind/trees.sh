#!/usr/bin/env bash
# shellcheck disable=SC2034 # the lists are read through a name reference
# Root trees from Debian packages, as tar files in $LAB/trees: for the nodes, for kube-proxy, for Gemel's image, for test pods.
# Arguments name single ones, without any all are made.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$KIND_DIR/versions.sh"
. "$KIND_DIR/../debian.sh"
mkdir -p "$LAB/trees"

node=(systemd conntrack iptables nftables iproute2 ethtool util-linux mount kmod libseccomp2 pigz e2fsprogs bash ca-certificates
  curl jq procps runc libnss-myhostname)
proxy=(iptables nftables conntrack kmod libc-bin)
# What Gemel's processes run on workers and targets: mkfs, blkid, growing, mount and losetup, userspace attach.
gemel=(xfsprogs e2fsprogs util-linux mount fuse3 ca-certificates)
tools=("${gemel[@]}" busybox-static fio bash procps iproute2 curl)
# Half of Gemel's tree is there for xfs_scrub and for packages' own scripts; each node gets the image again whenever it changes.
unused='usr/sbin/xfs_scrub* usr/lib/*/libicu* usr/bin/python3* usr/lib/python3* usr/lib/*/libpython3* usr/bin/perl* usr/share/perl*
  usr/lib/*/perl* usr/lib/*/libperl* usr/bin/apt* usr/lib/apt usr/lib/*/libapt* usr/bin/dpkg* var/lib/dpkg usr/share/zoneinfo'

make_one() {
  local variant=minbase cleanup=''
  local -n packages=$1
  case $1 in
    proxy) variant=extract cleanup=usr/share ;; # files of packages, not an installation
    gemel) cleanup=$unused ;;
  esac
  step "tree-$1" "$LAB/trees/$1.tar" "$SUITE" -- make_tree "$1" "$variant" "$cleanup" "${packages[@]}"
}

[ $# -gt 0 ] || set -- node proxy gemel tools
for name in "$@"; do make_one "$name"; done
