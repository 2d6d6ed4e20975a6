#!/usr/bin/env bash
# Debian's kernel, unpacked and never installed: $LAB/kernel/lib/modules, and $LAB/vmlinux, which an emulator starts seconds faster
# than the compressed file because nothing has to be unpacked by emulated instructions.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

build_kernel() {
  local from=() offset
  mapfile -t from < <(sources)
  rm -rf "$LAB/kernel" "$LAB/kernel.tar"
  mmdebstrap --mode=root --variant=extract --format=tar --include=linux-image-amd64 "$SUITE" "$LAB/kernel.tar" "${from[@]}"
  mkdir "$LAB/kernel"
  tar -C "$LAB/kernel" -xf "$LAB/kernel.tar" --wildcards './boot/vmlinuz-*' './lib/modules' './usr/lib/modules' 2>/dev/null ||
    tar -C "$LAB/kernel" -xf "$LAB/kernel.tar" --wildcards './boot/vmlinuz-*' './lib/modules'
  rm "$LAB/kernel.tar"
  depmod -b "$LAB/kernel" "$(kernel_version)"
  # The payload begins with the magic of xz; what follows it is not part of the stream, and xz says so.
  offset=$(LC_ALL=C grep -aobP -m1 '\xfd\x37\x7a\x58\x5a\x00' "$LAB"/kernel/boot/vmlinuz-* | head -n1 | cut -d: -f1)
  tail -c "+$((offset + 1))" "$LAB"/kernel/boot/vmlinuz-* | xz -dc >"$LAB/vmlinux" 2>/dev/null || true
  [ "$(head -c4 "$LAB/vmlinux" | tail -c3)" = ELF ] || { echo "no ELF image in the kernel's file" >&2; return 1; }
}

step kernel "$LAB/vmlinux" "$SUITE" -- build_kernel
