#!/usr/bin/env bash
# Prints a folder with kube-apiserver, etcd and kubectl, for controller-runtime's envtest:
#   KUBEBUILDER_ASSETS=$(hack/envtest.sh) go test ./...
# What KUBEBUILDER_ASSETS names already is kept if kube-apiserver and etcd are there; otherwise the binaries are built once (minutes; it
# says so on stderr) and found the next time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
binaries=(kube-apiserver etcd kubectl)

# complete FOLDER: has it what the tests run? They need no kubectl.
complete() { [ -x "$1/kube-apiserver" ] && [ -x "$1/etcd" ]; }

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  if complete "$KUBEBUILDER_ASSETS"; then
    echo "$KUBEBUILDER_ASSETS"
    exit
  fi
  say "KUBEBUILDER_ASSETS: $KUBEBUILDER_ASSETS has no kube-apiserver and etcd: using those of the cache"
fi
export STEP_SAYS="first build, part 1 of 2: kube-apiserver, etcd and kubectl, one binary; 10 to 20 minutes on two cores, once"
"$here/kind/components.sh" >&2
lab=$(cache_dir)/kind
mkdir -p "$lab/envtest"
for name in "${binaries[@]}"; do ln -sfn "../bin/hyperkube" "$lab/envtest/$name"; done
echo "$lab/envtest"
