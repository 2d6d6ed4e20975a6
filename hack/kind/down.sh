#!/usr/bin/env bash
# make kind-down: the cluster, its filesystems, and the lab's own Docker daemon. What was built stays in the cache.
set -euo pipefail
. "$(dirname "$0")/lab.sh"
if command -v docker >/dev/null && use_docker; then timed cluster delete_cluster; fi
timed backing backing_down
timed dockerd stop_docker
