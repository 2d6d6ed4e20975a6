#!/usr/bin/env bash
# make kind-up: a kind cluster for Gemel, all of it built here unless KIND_IMAGE names a node image to pull. Each step is skipped when
# what it would make is there.
set -euo pipefail
. "$(dirname "$0")/lab.sh"
[ "$(id -u)" = 0 ] || { echo "kind-up mounts filesystems and starts containers: run it as root" >&2; exit 1; }

build_all() {
  local trees
  need jq jq
  need gcc gcc
  need mmdebstrap mmdebstrap
  "$KIND_DIR/trees.sh" & # waits for a network most of the time, the compiler does not
  trees=$!
  "$KIND_DIR/components.sh"
  "$KIND_DIR/binaries.sh"
  wait "$trees"
  ensure_docker
  "$KIND_DIR/images.sh"
  "$KIND_DIR/node-image.sh"
}

# pull_all: what a registry has is pulled; test pods' and Gemel's own images are built all the same.
pull_all() {
  local name
  need mmdebstrap mmdebstrap
  "$KIND_DIR/trees.sh" gemel tools
  "$KIND_DIR/binaries.sh" runtime kind pause helm
  ensure_docker
  docker image inspect "$KIND_IMAGE" >/dev/null 2>&1 || timed pull-node docker pull -q "$KIND_IMAGE"
  for name in "${SIDECARS[@]}"; do
    docker image inspect "$(image_of "$name")" >/dev/null 2>&1 && continue
    timed "pull-$name" docker pull -q "$(official_image "$name")"
    docker tag "$(official_image "$name")" "$(image_of "$name")"
  done
  docker image inspect "$(image_of tools)" >/dev/null 2>&1 || timed tools build_tools_image >/dev/null
}

# load_all: the node image that is built here has them already.
load_all() {
  local name images=()
  [ -x "$kubectl" ] || docker cp -L "${NODES[0]}:/usr/bin/kubectl" "$kubectl"
  prepare_foreign_nodes
  for name in "${SIDECARS[@]}" tools; do images+=("$(image_of "$name")"); done
  kind_load "${images[@]}"
}

say "kind-up: the build"
image=${KIND_IMAGE:-gemel.test/node:dev}
if [ -n "${KIND_IMAGE:-}" ]; then pull_all; else build_all; fi

say "kind-up: the cluster"
hash=$(hash_of "$(docker image inspect -f '{{.Id}}' "$image")" "$(cluster_config)")
if ! cluster_runs "$hash"; then
  if [ -e "$LAB/stamps/cluster" ]; then echo "   the cluster has stopped, or its inputs have changed: making it again" >&2; fi
  delete_cluster
  backing_down # a new cluster starts with empty filesystems
  timed backing backing_up
  timed cluster create_cluster "$image"
  echo "$hash" >"$LAB/stamps/cluster"
fi
if [ -n "${KIND_IMAGE:-}" ]; then timed load load_all; fi
"$KIND_DIR/gemel-image.sh"
timed ready wait_ready >"$LAB/logs/ready.log"
timed snapshots install_snapshots >"$LAB/logs/snapshots.log"
timed volumes install_volumes >"$LAB/logs/volumes.log"
say "ready after $SECONDS s"
echo "export KUBECONFIG=$KUBECONFIG PATH=$LAB/bin:\$PATH${DOCKER_HOST:+ DOCKER_HOST=$DOCKER_HOST}"
