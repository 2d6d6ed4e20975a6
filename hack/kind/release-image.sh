#!/usr/bin/env bash
# gemel.test/gemel:NAME, a release that this tree is upgraded from (internal/testkit/release), beside the image of this tree, which is there already:
# gemel-image.sh makes it and what both stand on. Without a name it is the last release. Prints nothing but the steps.
set -euo pipefail
. "$(dirname "$0")/lab.sh"
use_docker || { echo "no Docker daemon: make kind-up first" >&2; exit 1; }
made=$(cd "$KIND_DIR/../.." && go run ./hack/release "$@")
read -r name source bin <<<"$made"
image=gemel.test/gemel:$name

build_image() {
  docker_build "$image" "$bin" --target local --build-arg "BASE=$(image_of gemel-base)" -f - <"$source/Dockerfile"
}

timed "gemel-$name-image" build_image
if [ -s "$KUBECONFIG" ]; then timed "gemel-$name-load" kind_load "$image"; fi
