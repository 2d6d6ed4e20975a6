#!/usr/bin/env bash
# The image of a kind node: a Debian tree, kind's own node files as its Go module has them, the binaries, and the images of
# $LAB/images.tar already in containerd's store.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$KIND_DIR/versions.sh"
. "$KIND_DIR/docker.sh"
. "$KIND_DIR/names.sh"
use_docker

build_node_image() {
  local work
  work=$(mktemp -d "$LAB/work.XXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  mkdir "$work/node"
  tar -C "$work/node" -xf "$LAB/trees/node.tar"
  kind_files "$work/node"
  binaries "$work/node"
  configure_containerd "$work/node"
  own_files "$work/node"
  preload "$work/node" "$work"
  tar -C "$work/node" --numeric-owner -c . | docker import - gemel.test/node-tree:dev
  # an import takes no stop signal; a build that only sets metadata adds no layer
  printf '%s\n' 'FROM gemel.test/node-tree:dev' 'ENV container=docker' 'STOPSIGNAL SIGRTMIN+3' \
    'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' | docker_build gemel.test/node:dev -
  docker rmi gemel.test/node-tree:dev
}

# kind_files copies them with the modes that kind's Dockerfile gives, and takes out the units that it takes out.
kind_files() {
  local node=$1 files file mode unit
  files=$(cd / && go mod download -json "sigs.k8s.io/kind@$KIND_VERSION" | jq -r .Dir)/images/base/files
  while IFS= read -r file; do
    mode=644
    case $file in usr/local/bin/* | kind/bin/*) mode=755 ;; esac
    install -D -m "$mode" "$files/$file" "$node/$file"
  done < <(cd "$files" && find . -type f -printf '%P\n')
  rm -f "$node/etc/systemd/system/containerd-fuse-overlayfs.service" # rootless only
  for unit in 'sysinit.target.wants/systemd-tmpfiles-setup.service' 'multi-user.target.wants/*' 'local-fs.target.wants/*' \
    'sockets.target.wants/*udev*' 'sockets.target.wants/*initctl*' 'basic.target.wants/*'; do
    # shellcheck disable=SC2086 # patterns
    (cd "$node/lib/systemd/system" && rm -f $unit)
  done
  rm -f "$node"/etc/systemd/system/*.wants/*
  echo "ReadKMsg=no" >>"$node/etc/systemd/journald.conf"
  ln -sf /usr/lib/systemd/systemd "$node/sbin/init"
}

binaries() {
  local node=$1 name
  install "$LAB"/bin/{containerd,containerd-shim-runc-v2,ctr,crictl} "$node/usr/local/bin/"
  install "$LAB/bin/hyperkube" "$node/usr/bin/hyperkube"
  for name in kubeadm kubelet kubectl; do ln -sf hyperkube "$node/usr/bin/$name"; done
  install -D -t "$node/opt/cni/bin" "$LAB"/bin/{host-local,loopback,ptp,portmap}
}

configure_containerd() {
  local node=$1 pause
  pause=$("$LAB/bin/kubeadm" config images list --kubernetes-version "$(mod_version hyperkube k8s.io/kubernetes)" | grep /pause:)
  # The OOM score and resource limits want CAP_SYS_RESOURCE, which the machine may not have.
  sed -i -e "s#sandbox_image = .*#sandbox_image = \"$pause\"#" -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
    -e '/^\[proxy_plugins/,/^$/d' "$node/etc/containerd/config.toml"
  "$LAB/bin/ctr" oci spec |
    jq '.hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >"$node/etc/containerd/cri-base.json"
}

own_files() {
  local node=$1 unit
  mkdir -p "$node"/{etc/kubernetes/manifests,kind/manifests,etc/cni/net.d}
  install -m 755 -t "$node/kind/bin" "$KIND_DIR"/node/{prepare,loop-nodes}
  install -m 644 -t "$node/etc/systemd/system" "$KIND_DIR/node/prepare.service"
  install -m 644 -t "$node/kind/manifests" "$KIND_DIR"/node/manifests/*.yaml
  mod_version hyperkube k8s.io/kubernetes | tr -d '\n' >"$node/kind/version"
  for unit in kubelet containerd undo-mount-hacks prepare; do chroot "$node" systemctl enable "$unit.service"; done
  chroot "$node" systemctl mask systemd-binfmt.service
}

# preload: a containerd of this machine fills the node's content store. It unpacks nothing: every node's /var is a copy of the image's.
preload() {
  local node=$1 work=$2 pid waited status=0
  cat >"$work/containerd.toml" <<EOF
version = 3
root = "$node/var/lib/containerd"
state = "$work/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.nri.v1.nri"]
[grpc]
address = "$work/sock"
[ttrpc]
address = "$work/sock.ttrpc"
EOF
  "$LAB/bin/containerd" --config "$work/containerd.toml" --log-level warn &
  pid=$!
  for ((waited = 0; waited < 100; waited++)); do
    "$LAB/bin/ctr" -a "$work/sock" version >/dev/null 2>&1 && break
    sleep 0.2
  done
  "$LAB/bin/ctr" -a "$work/sock" -n k8s.io images import --no-unpack --label=io.cri-containerd.pinned=pinned --digests=false \
    "$LAB/images.tar" || status=$?
  kill "$pid"
  wait "$pid" || true
  return "$status"
}

# The image may be gone while the stamp is there: the daemon is another one, or the image was removed.
docker image inspect gemel.test/node:dev >/dev/null 2>&1 || rm -f "$LAB/stamps/node-image"
step node-image "$LAB/images.tar" @images @tree-node @hyperkube @containerd @crictl @cni "$KIND_VERSION" "$KIND_DIR/node" \
  "$KIND_DIR/node-image.sh" -- build_node_image
