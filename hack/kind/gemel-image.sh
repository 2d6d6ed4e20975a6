#!/usr/bin/env bash
# gemel.test/gemel:dev: all binaries of cmd/ on a Debian tree with what they run (mkfs, mount, fusermount), built and, if there is a
# cluster, brought into its nodes. Unchanged sources give the same binaries, those the same image, and that is not loaded again.
set -euo pipefail
. "$(dirname "$0")/lab.sh"
use_docker || { echo "no Docker daemon: make kind-up first" >&2; exit 1; }

build_binaries() {
  rm -rf "$LAB/gemel" # a command may have been renamed
  mkdir "$LAB/gemel"
  build_go ../.. "$LAB/gemel/" "" ./cmd/...
}

build_image() {
  docker_build "$(image_of gemel)" "$LAB/gemel" --target local --build-arg "BASE=$(image_of gemel-base)" -f - <"$KIND_DIR/../../Dockerfile"
}

"$KIND_DIR/trees.sh" gemel
docker image inspect "$(image_of gemel-base)" >/dev/null 2>&1 || rm -f "$LAB/stamps/gemel-base"
step gemel-base "$LAB/trees/gemel.tar" @tree-gemel -- docker import -c "LABEL gemel.test=lab" "$LAB/trees/gemel.tar" "$(image_of gemel-base)"
(timed gemel-binaries build_binaries)
timed gemel-image build_image
if [ -s "$KUBECONFIG" ]; then timed gemel-load kind_load "$(image_of gemel)"; fi
