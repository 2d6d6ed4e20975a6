#!/usr/bin/env bash
# Prints a folder with kube-apiserver, etcd and kubectl, for controller-runtime's envtest:
#   KUBEBUILDER_ASSETS=$(hack/envtest.sh) go test ./...
# What KUBEBUILDER_ASSETS names already is kept; otherwise the binaries are built once (minutes) and found the next time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
binaries=(kube-apiserver etcd kubectl)

complete() {
  local name
  for name in "${binaries[@]}"; do [ -x "$1/$name" ] || return 1; done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ] && complete "$KUBEBUILDER_ASSETS"; then
  echo "$KUBEBUILDER_ASSETS"
  exit
fi
"$here/kind/components.sh" >&2
lab=$(cache_dir)/kind
mkdir -p "$lab/envtest"
for name in "${binaries[@]}"; do ln -sfn "../bin/hyperkube" "$lab/envtest/$name"; done
echo "$lab/envtest"
