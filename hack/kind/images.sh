#!/usr/bin/env bash
# The container images of the lab, from what was compiled here, as one archive $LAB/images.tar that the node image holds: those that
# kubeadm asks for, the network daemon, the CSI sidecars and the image of test pods. Nothing is pulled while the cluster runs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$KIND_DIR/versions.sh"
. "$KIND_DIR/docker.sh"
. "$KIND_DIR/names.sh"
use_docker

# with_entrypoint BASE NAME ENTRYPOINT...: an image that differs from BASE in what it starts, and adds no layer.
with_entrypoint() {
  local base=$1 name=$2
  shift 2
  printf 'FROM %s\nENTRYPOINT %s\n' "$base" "$(printf '%s\n' "$@" | jq -R . | jq -cs .)" | docker_build "$name" -
}

# kubernetes_base: Debian's nftables and conntrack for kube-proxy, and the binary under all its names.
kubernetes_base() {
  local tree=$1 name
  mkdir "$tree"
  tar -C "$tree" -xf "$LAB/trees/proxy.tar"
  for name in iptables{,-save,-restore} ip6tables{,-save,-restore}; do ln -sf xtables-nft-multi "$tree/usr/sbin/$name"; done
  install -D "$LAB/bin/hyperkube" "$tree/usr/local/bin/hyperkube"
  for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl etcd etcdctl kindnet; do
    ln -s hyperkube "$tree/usr/local/bin/$name"
  done
  mkdir -p "$tree"/{run,etc}
  install -d -m 1777 "$tree/tmp"
  tar -C "$tree" --numeric-owner -c . |
    docker import -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - gemel.test/kubernetes:dev
}

# single NAME FILE: an image of one static binary.
single() {
  tar -C "$(dirname "$2")" --owner=0 --group=0 -c "$(basename "$2")" | docker import -c "ENTRYPOINT [\"/$(basename "$2")\"]" - "$1"
}

build_images() {
  local work names=() name component
  work=$(mktemp -d "$LAB/work.XXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  kubernetes_base "$work/kubernetes"
  # without the version kubeadm would ask the internet for it
  for name in $("$LAB/bin/kubeadm" config images list --kubernetes-version "$(mod_version hyperkube k8s.io/kubernetes)"); do
    component=${name##*/}
    component=${component%%:*}
    case $component in
      coredns | pause) single "$name" "$LAB/bin/$component" ;;
      etcd) with_entrypoint gemel.test/kubernetes:dev "$name" ;; # its pod names the command
      *) with_entrypoint gemel.test/kubernetes:dev "$name" "/usr/local/bin/$component" ;;
    esac
    names+=("$name")
  done
  with_entrypoint gemel.test/kubernetes:dev gemel.test/kindnet:dev /usr/local/bin/kindnet
  for name in "${SIDECARS[@]}"; do single "$(image_of "$name")" "$LAB/sidecars/$name"; done
  build_tools_image
  for name in "${SIDECARS[@]}" kindnet tools; do names+=("$(image_of "$name")"); done
  docker save -o "$work/images.tar" "${names[@]}"
  mv "$work/images.tar" "$LAB/images.tar"
  docker rmi "${names[@]}" gemel.test/kubernetes:dev >/dev/null # from now on they are in the archive
}

step images "$LAB/images.tar" @hyperkube @coredns @pause @sidecars @tree-proxy @tree-tools "$KIND_DIR/images.sh" "$KIND_DIR/names.sh" \
  -- build_images
