# shellcheck shell=bash
# The whole lab for other scripts; source it:
#   . hack/kind/lab.sh; use_docker; kind_load some/image:tag; "$kubectl" get pods
lab_scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$lab_scripts/lib.sh"
. "$lab_scripts/versions.sh"
. "$lab_scripts/docker.sh"
. "$lab_scripts/names.sh"
. "$lab_scripts/backing.sh"
. "$lab_scripts/cluster.sh"
