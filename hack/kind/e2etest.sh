#!/usr/bin/env bash
# Kubernetes' e2e.test, the images of its storage tests' pods, and ginkgo, which runs them; from the module that e2etest/go.mod pins. The
# images have the names that e2e.test asks for, and are brought into the nodes if there is a cluster.
set -euo pipefail
. "$(dirname "$0")/lab.sh"
use_docker || { echo "no Docker daemon: make kind-up first" >&2; exit 1; }
kubernetes=$(mod_version e2etest k8s.io/kubernetes)
[ "$kubernetes" = "$(mod_version hyperkube k8s.io/kubernetes)" ] ||
  { echo "hack/kind/e2etest/go.mod: k8s.io/kubernetes is $kubernetes, hack/kind/hyperkube has another version: use the same" >&2; exit 1; }

build_e2e() {
  cd "$KIND_DIR/e2etest"
  CGO_ENABLED=0 GOFLAGS=-mod=readonly go test -c -trimpath -buildvcs=false \
    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes" -o "$LAB/bin/e2e.test" k8s.io/kubernetes/test/e2e
  "$LAB/bin/e2e.test" --list-images >"$LAB/e2e-images.list"
}

build_e2e_tools() {
  mkdir -p "$LAB/agnhost"
  build_go e2etest "$LAB/bin/" "" github.com/onsi/ginkgo/v2/ginkgo
  build_go e2etest "$LAB/agnhost/" "" k8s.io/kubernetes/test/images/agnhost
}

# names_of IMAGE...: as e2e.test asks for them; of some it knows two versions.
names_of() {
  local name
  for name in "$@"; do grep "^registry.*/$name:" "$LAB/e2e-images.list"; done
}

# busybox_image: Debian's busybox under all its names. It replaces nginx too, of which only the shell is used.
busybox_image() {
  local work applet name
  work=$(mktemp -d "$LAB/work.XXXX")
  chmod 755 "$work" # it becomes the root folder of processes that are not root
  mkdir -p "$work"/{bin,etc,root,var/run}
  tar -C "$work" --strip-components=3 -xf "$LAB/trees/tools.tar" ./usr/bin/busybox
  mv "$work/busybox" "$work/bin/"
  for applet in $("$work/bin/busybox" --list); do [ -e "$work/bin/$applet" ] || ln -s busybox "$work/bin/$applet"; done
  install -d -m 1777 "$work/tmp"
  printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$work/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$work/etc/group"
  tar -C "$work" --owner=0 --group=0 -c . | docker import -c 'ENV PATH=/bin' -c 'CMD ["sh"]' -c 'LABEL gemel.test=lab' - gemel.test/busybox:dev
  rm -rf "$work"
  for name in $(names_of busybox nginx); do docker tag gemel.test/busybox:dev "$name"; done
}

agnhost_image() {
  local name
  printf 'FROM gemel.test/busybox:dev\nCOPY agnhost /agnhost\nENTRYPOINT ["/agnhost"]\nCMD ["pause"]\n' >"$LAB/agnhost/Dockerfile"
  docker_build gemel.test/agnhost:dev "$LAB/agnhost"
  for name in $(names_of agnhost); do docker tag gemel.test/agnhost:dev "$name"; done
}

build_e2e_images() {
  busybox_image
  agnhost_image
}

# load_e2e_images: busybox and agnhost are new to the nodes; glibc-dns-testing is a Debian userland, and one of those is there.
load_e2e_images() {
  local node name
  mapfile -t names < <(names_of busybox nginx agnhost)
  kind_load "${names[@]}"
  for node in "${NODES[@]:1}"; do
    for name in $(names_of glibc-dns-testing); do
      docker exec "$node" ctr -n k8s.io images tag --force "$(image_of tools)" "$name" >/dev/null 2>>"$LAB/logs/e2e-load.log"
    done
  done
}

step e2e "$LAB/bin/e2e.test" "$KIND_DIR/e2etest" "$(go env GOVERSION)" -- build_e2e
step e2e-tools "$LAB/agnhost/agnhost" "$KIND_DIR/e2etest" "$(go env GOVERSION)" -- build_e2e_tools
"$KIND_DIR/trees.sh" tools
docker image inspect gemel.test/agnhost:dev >/dev/null 2>&1 || rm -f "$LAB/stamps/e2e-images"
step e2e-images "$LAB/agnhost/agnhost" @e2e @e2e-tools @tree-tools "$KIND_DIR/e2etest.sh" -- build_e2e_images
if [ -s "$KUBECONFIG" ]; then timed e2e-load load_e2e_images; fi
