#!/usr/bin/env bash
# Runs a command with the folder that guests are cloned from in GEMEL_VM_LAB, made first if need be:
#   hack/vm/run.sh go test -count=1 -v ./e2e/kernel
set -euo pipefail
GEMEL_VM_LAB=$("$(dirname "$0")/up.sh")
export GEMEL_VM_LAB
exec "$@"
