#!/usr/bin/env bash
# One binary of all Kubernetes components and etcd, from the Go module proxy: there are no release binaries where only package
# registries can be reached. Made for the kind nodes, their images and envtest.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
components=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl etcd etcdctl kindnet)

build_hyperkube() {
  local version minor package flags=()
  version=$(mod_version hyperkube k8s.io/kubernetes)
  minor=${version#v1.}
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=("-X $package.gitVersion=$version" "-X $package.gitMajor=1" "-X $package.gitMinor=${minor%%.*}"
      "-X $package.gitTreeState=clean" "-X $package.gitCommit=unknown" "-X $package.buildDate=1970-01-01T00:00:00Z")
  done
  build_go hyperkube "$LAB/bin/hyperkube" "${flags[*]}"
  for component in "${components[@]}"; do ln -sf hyperkube "$LAB/bin/$component"; done
}

step hyperkube "$LAB/bin/hyperkube" "$KIND_DIR/hyperkube" "$(go env GOVERSION)" -- build_hyperkube
