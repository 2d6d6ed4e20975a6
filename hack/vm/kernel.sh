#!/usr/bin/env bash
# Debian's kernel, unpacked and never installed: $LAB/kernel/lib/modules, and $LAB/vmlinux, which an emulator starts seconds faster
# than the compressed file because nothing has to be unpacked by emulated instructions.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

build_kernel() {
  local offset
  make_tree kernel extract '' linux-image-amd64
  rm -rf "$LAB/kernel"
  mkdir "$LAB/kernel"
  tar -C "$LAB/kernel" -xf "$LAB/trees/kernel.tar" --wildcards './boot/vmlinuz-*' './lib/modules'
  rm "$LAB/trees/kernel.tar"
  depmod -b "$LAB/kernel" "$(kernel_version)"
  # The payload begins with the magic of xz; what follows it is not part of the stream, and xz says so.
  offset=$(LC_ALL=C grep -aobP -m1 '\xfd\x37\x7a\x58\x5a\x00' "$LAB"/kernel/boot/vmlinuz-* | head -n1 | cut -d: -f1)
  tail -c "+$((offset + 1))" "$LAB"/kernel/boot/vmlinuz-* | xz -dc >"$LAB/vmlinux" 2>/dev/null || true
  [ "$(head -c4 "$LAB/vmlinux" | tail -c3)" = ELF ] || { echo "no ELF image in the kernel's file" >&2; return 1; }
}

step kernel "$LAB/vmlinux" "$SUITE" -- build_kernel
