#!/usr/bin/env bash
# Runs a command in the lab's environment: KUBECONFIG, the lab's tools in PATH, its Docker daemon.
#   hack/kind/run.sh kubectl get pods -A
set -euo pipefail
. "$(dirname "$0")/lab.sh"
use_docker || { echo "no cluster: make kind-up first" >&2; exit 1; }
[ -s "$KUBECONFIG" ] || { echo "no cluster: make kind-up first" >&2; exit 1; }
export KUBECONFIG PATH="$LAB/bin:$LAB/gemel:$PATH" # with kubectl-gemel
exec "$@"
