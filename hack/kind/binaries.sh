#!/usr/bin/env bash
# Everything else that is compiled, into $LAB/bin and $LAB/sidecars. Arguments name single ones, without any all are made.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$KIND_DIR/versions.sh"
go=$(go env GOVERSION)
mkdir -p "$LAB/sidecars"

# install_go LDFLAGS PACKAGE@VERSION...: for modules whose own go.mod is enough.
install_go() {
  local ldflags=$1
  shift
  cd /
  CGO_ENABLED=0 GOFLAGS='' GOBIN=$LAB/bin go install -trimpath -buildvcs=false -tags "${TAGS:-}" -ldflags "-s -w $ldflags" "$@"
}

build_kind() { install_go "" "sigs.k8s.io/kind@$KIND_VERSION"; }
build_helm() { install_go "-X helm.sh/helm/v3/internal/version.version=$HELM_VERSION" "helm.sh/helm/v3/cmd/helm@$HELM_VERSION"; }

build_containerd() {
  local module=github.com/containerd/containerd/v2
  TAGS=no_btrfs,no_zfs,no_devmapper,no_aufs install_go "-X $module/version.Version=$CONTAINERD_VERSION" \
    "$module/cmd/"{containerd,containerd-shim-runc-v2,ctr}"@$CONTAINERD_VERSION"
}

build_cni() {
  install_go "" "github.com/containernetworking/plugins/plugins/"{main/ptp,main/loopback,ipam/host-local,meta/portmap}"@$CNI_VERSION"
}

build_crictl() {
  build_go crictl "$LAB/bin/crictl" "-X sigs.k8s.io/cri-tools/pkg/version.Version=$(mod_version crictl sigs.k8s.io/cri-tools)" \
    sigs.k8s.io/cri-tools/cmd/crictl
}

build_coredns() { build_go coredns "$LAB/bin/coredns" ""; }
build_runtime() { build_go runtime "$LAB/bin/gemel-lab-runtime" ""; }

# The pause container is one C file of Kubernetes.
build_pause() {
  local kubernetes
  need gcc gcc
  need_file /usr/include/stdio.h libc6-dev
  cd "$KIND_DIR/hyperkube"
  kubernetes=$(go mod download -json k8s.io/kubernetes | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  gcc -Os -s -static "-DVERSION=v$PAUSE_VERSION" -o "$LAB/bin/pause" "$kubernetes/build/pause/linux/pause.c"
}

# The sidecars agree on versions of what they share, so one module makes all five.
build_sidecars() {
  local from=github.com/kubernetes-csi
  build_go csi "$LAB/sidecars/" "" "$from/external-provisioner/v6/cmd/csi-provisioner" "$from/external-attacher/v4/cmd/csi-attacher" \
    "$from/external-resizer/v2/cmd/csi-resizer" "$from/external-snapshotter/v8/cmd/csi-snapshotter" \
    "$from/external-snapshotter/v8/cmd/snapshot-controller"
}

make_one() {
  case $1 in
    kind) step kind "$LAB/bin/kind" "$KIND_VERSION" "$go" -- build_kind ;;
    helm) step helm "$LAB/bin/helm" "$HELM_VERSION" "$go" -- build_helm ;;
    containerd) step containerd "$LAB/bin/containerd" "$CONTAINERD_VERSION" "$go" -- build_containerd ;;
    cni) step cni "$LAB/bin/ptp" "$CNI_VERSION" "$go" -- build_cni ;;
    crictl) step crictl "$LAB/bin/crictl" "$KIND_DIR/crictl" "$go" -- build_crictl ;;
    coredns) step coredns "$LAB/bin/coredns" "$KIND_DIR/coredns" "$go" -- build_coredns ;;
    runtime) step runtime "$LAB/bin/gemel-lab-runtime" "$KIND_DIR/runtime" "$go" -- build_runtime ;;
    pause) step pause "$LAB/bin/pause" "$(mod_version hyperkube k8s.io/kubernetes)" "$PAUSE_VERSION" -- build_pause ;;
    sidecars) step sidecars "$LAB/sidecars/csi-provisioner" "$KIND_DIR/csi" "$go" -- build_sidecars ;;
    *) echo "binaries.sh: unknown: $1" >&2; return 2 ;;
  esac
}

[ $# -gt 0 ] || set -- runtime kind pause cni containerd crictl coredns sidecars helm
for name in "$@"; do make_one "$name"; done
