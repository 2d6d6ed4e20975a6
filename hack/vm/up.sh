#!/usr/bin/env bash
# Makes what guests are cloned from; every step is skipped while its inputs are unchanged. Prints the folder.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_machine

# Booted in a network namespace of its own: nothing of the guest can reach this machine's network.
build_template() {
  cd "$VM_DIR/../.."
  go build -o "$LAB/bin/template" ./hack/vm/template
  unshare --net sh -c 'ip link set lo up && exec "$1" "$2"' sh "$LAB/bin/template" "$LAB"
}

"$VM_DIR/kernel.sh"
"$VM_DIR/disk.sh"
step template "$LAB/template.state" @disk @kernel "$VM_DIR/template" "$VM_DIR/../../internal/testkit/kernel/vm" -- build_template
echo "$LAB"
