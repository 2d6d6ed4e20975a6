#!/usr/bin/env bash
# Prints a folder with Kubernetes' CSI sidecars, for the tests that run them against the driver:
#   GEMEL_SIDECARS=$(hack/sidecars.sh) go test ./test/integration/sanity
# They are built once (minutes) and found the next time; the kind cluster's images have the same ones.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
export STEP_SAYS="first build, part 2 of 2: the five CSI sidecars; 5 to 10 minutes on two cores, once"
"$here/kind/binaries.sh" sidecars >&2
echo "$(cache_dir)/kind/sidecars"
