#!/usr/bin/env bash
# The guest's disk: Debian with open-iscsi, multipath-tools and what tests need, its modules, the agent. $LAB/base.ext4, and the small
# $LAB/initramfs.cpio that finds it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=(udev kmod open-iscsi multipath-tools kpartx sg3-utils fio e2fsprogs xfsprogs iproute2 procps psmisc util-linux mount
  nftables busybox-static lsscsi strace drbd-utils)
modules=(virtio_pci virtio_blk virtio_net virtio_rng ext4 xfs loop fuse overlay sd_mod sg iscsi_tcp dm_mod dm_multipath dm_service_time
  dm_round_robin dm_queue_length scsi_dh_alua scsi_debug target_core_mod target_core_file target_core_iblock iscsi_target_mod drbd nf_tables nft_ct nft_nat
  nft_chain_nat nft_reject_inet nf_conntrack crc32c_generic crc32c_intel ipv6)
early=(virtio_pci virtio_blk ext4)

# files_of MODULE...: the files that load them, dependencies first, each once.
files_of() {
  local module
  for module; do modprobe -d "$LAB/kernel" -S "$(kernel_version)" --show-depends "$module"; done |
    awk '/^insmod/ && !seen[$2]++ { print $2 }'
}

install_modules() {
  local root=$1 file version
  version=$(kernel_version)
  files_of "${modules[@]}" | while read -r file; do install -D -m 644 "$file" "$root/lib/modules/$version/${file#*/lib/modules/"$version"/}"; done
  cp "$LAB/kernel/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$version/"
  depmod -b "$root" "$version"
}

build_initramfs() {
  local work=$1 file
  mkdir -p "$work"/{bin,modules,dev,proc,sys,root}
  cp "$2/bin/busybox" "$work/bin/"
  install -m 755 "$VM_DIR/guest/initramfs" "$work/init"
  files_of "${early[@]}" | while read -r file; do
    cp "$file" "$work/modules/"
    echo "/modules/$(basename "$file")" >>"$work/modules.list"
  done
  (cd "$work" && find . | cpio -o -H newc --quiet) >"$LAB/initramfs.cpio"
}

build_disk() {
  local work
  work=$(mktemp -d "$LAB/work.XXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  mkdir "$work/root"
  tar -C "$work/root" -xf "$LAB/trees/guest.tar"
  install_modules "$work/root"
  install -m 755 "$VM_DIR/guest/init" "$work/root/sbin/lab-init"
  (cd "$VM_DIR/../.." && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$work/root/usr/local/sbin/lab-agent" ./e2e/kernel/agent)
  build_initramfs "$work/initramfs" "$work/root"
  truncate -s 4G "$work/disk"
  mkfs.ext4 -q -O '^has_journal' -E lazy_itable_init=1,root_owner=0:0 -d "$work/root" "$work/disk"
  mv "$work/disk" "$LAB/base.ext4"
}

step tree-guest "$LAB/trees/guest.tar" "$SUITE" -- make_tree guest minbase '' "${packages[@]}"
step disk "$LAB/base.ext4" @tree-guest @kernel "$VM_DIR/guest" "$VM_DIR/disk.sh" "$VM_DIR/../../e2e/kernel/agent" -- build_disk
