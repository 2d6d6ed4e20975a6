# shellcheck shell=bash disable=SC2034
# The images of the lab by name, and how one is built or brought into the nodes. Source it after docker.sh.
SIDECARS=(csi-provisioner csi-attacher csi-resizer csi-snapshotter snapshot-controller)

image_of() { echo "gemel.test/$1:dev"; }

# docker_build NAME CONTEXT [ARGUMENT...]: without buildx only the old builder is there; it has to be asked for, and says that it is old.
docker_build() {
  local name=$1 context=$2 kit=0 log
  shift 2
  docker buildx version >/dev/null 2>&1 && kit=1
  log=$(DOCKER_BUILDKIT=$kit docker build -q -t "$name" --label gemel.test=lab "$@" "$context" 2>&1) || { echo "$log" >&2; return 1; }
  docker image prune -f --filter label=gemel.test=lab >/dev/null # the image that had the name before
}

# build_tools_image: for test pods: a shell, fio, file systems.
build_tools_image() {
  docker import -c 'CMD ["sleep", "infinity"]' "$LAB/trees/tools.tar" "$(image_of tools)"
}

# kind_load IMAGE...: brings images of the Docker daemon into all nodes; those that a node has are left alone.
kind_load() {
  "$LAB/bin/kind" load docker-image -q --name "$CLUSTER" "$@"
}

# official_image SIDECAR: its name at the registry, for machines that can pull; the version is that of the module built elsewhere.
official_image() {
  local repository
  case $1 in
    csi-provisioner) repository=external-provisioner/v6 ;;
    csi-attacher) repository=external-attacher/v4 ;;
    csi-resizer) repository=external-resizer/v2 ;;
    *) repository=external-snapshotter/v8 ;;
  esac
  echo "registry.k8s.io/sig-storage/$1:$(mod_version csi "github.com/kubernetes-csi/$repository")"
}
