# shellcheck shell=bash
# Shared by the scripts of hack/vm; source it. Everything they make is under $LAB, except Debian packages.
VM_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$VM_DIR/../lib.sh"
. "$VM_DIR/../debian.sh"
LAB=$(cache_dir)/vm
. "$VM_DIR/../steps.sh"
mkdir -p "$LAB/trees"

need_machine() {
  need qemu-system-x86_64 qemu-system-x86
  need qemu-img qemu-utils
  need mmdebstrap mmdebstrap
  need mkfs.ext4 e2fsprogs
  need cpio cpio
  need xz xz-utils
  need depmod kmod
  need ip iproute2
  need nft nftables # the tests' networks
  need sysctl procps
}

# kernel_version: of the kernel that was unpacked.
kernel_version() { basename "$LAB"/kernel/lib/modules/*; }
