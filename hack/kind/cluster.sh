# shellcheck shell=bash
# The kind cluster itself; lab.sh sources it.
KUBECONFIG=$LAB/kubeconfig
export KUBECONFIG
kind=$LAB/bin/kind
kubectl=$LAB/bin/kubectl

# node_config ROLE NAME [ZONE]
node_config() {
  cat <<EOF
- role: $1
  extraMounts:
  - {hostPath: $BACKING/$2, containerPath: /var/lib/gemel-backing}
EOF
  [ -z "${3:-}" ] || printf '  labels: {topology.kubernetes.io/zone: %s}\n' "$3"
}

cluster_config() {
  cat <<EOF
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {apiServerAddress: 127.0.0.1}
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  failCgroupV1: false # the machine may have only the old cgroups
  syncFrequency: 10s # growth on the node waits for a pod's next sync, by default up to 90 s
  nodeStatusUpdateFrequency: 4s
nodes:
EOF
  node_config control-plane "${NODES[0]}"
  node_config worker "${NODES[1]}" zone-a
  node_config worker "${NODES[2]}" zone-b
  node_config worker "${NODES[3]}" zone-c
}

# cluster_runs HASH: all nodes run, they were made from these inputs, and on the filesystems that are mounted (after a reboot of the
# machine Docker may start nodes again, on empty folders).
cluster_runs() {
  local running node
  for node in "${NODES[@]}"; do mountpoint -q "$BACKING/$node" || return 1; done
  running=$(docker ps -q --filter "label=io.x-k8s.kind.cluster=$CLUSTER" | wc -l)
  [ "$running" = "${#NODES[@]}" ] && [ -s "$KUBECONFIG" ] && unchanged cluster "$1"
}

create_cluster() {
  cluster_config >"$LAB/cluster.yaml"
  "$kind" create cluster --name "$CLUSTER" --image "$1" --config "$LAB/cluster.yaml" --kubeconfig "$KUBECONFIG" --retain -q
}

delete_cluster() {
  rm -f "$LAB/stamps/cluster"
  if [ -n "$(docker ps -aq --filter "label=io.x-k8s.kind.cluster=$CLUSTER")" ]; then
    local loops name
    loops=$(attached_loops)
    "$kind" delete cluster --name "$CLUSTER" --kubeconfig "$KUBECONFIG" -q
    for name in $loops; do losetup -d "/dev/$name" 2>/dev/null || :; done # some went by themselves
  fi
  rm -f "$KUBECONFIG"
}

# attached_loops names the loop devices of volumes that are still attached in userspace: nodes share this machine's kernel, which keeps them when
# the processes behind them are gone. Only within their node do their files have a path.
attached_loops() {
  local node
  for node in "${NODES[@]}"; do
    timeout 10 docker exec "$node" sh -c 'grep -l ^/var/lib/gemel/ /sys/block/loop*/loop/backing_file' 2>/dev/null || :
  done | cut -d/ -f4 | sort -u
}

# prepare_foreign_nodes does for kind's official node image what the lab's own does at boot. It is lost when such a node restarts.
prepare_foreign_nodes() {
  local node
  for node in "${NODES[@]}"; do docker exec -i "$node" sh <"$KIND_DIR/node/loop-nodes"; done
}

wait_ready() {
  "$kubectl" wait --for=condition=Ready node --all --timeout=180s
  "$kubectl" -n kube-system rollout status deployment/coredns --timeout=180s
  "$kubectl" -n kube-system wait --for=condition=Ready pod --all --timeout=180s
}

# install_snapshots: the CRDs and the one controller that all drivers share, as the snapshotter's modules have them. A chart must not
# bring them, so the lab does. Group snapshots are behind a gate of the controller, which needs their CRDs.
install_snapshots() {
  local crds controller
  cd "$KIND_DIR/csi" || return
  crds=$(go mod download -json github.com/kubernetes-csi/external-snapshotter/client/v8 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/config/crd
  controller=$(go mod download -json github.com/kubernetes-csi/external-snapshotter/v8 |
    sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/deploy/kubernetes/snapshot-controller
  # server-side: the CRDs are too large for an annotation of what was applied
  "$kubectl" apply --server-side -f "$crds/snapshot.storage.k8s.io_volumesnapshotclasses.yaml" \
    -f "$crds/snapshot.storage.k8s.io_volumesnapshotcontents.yaml" -f "$crds/snapshot.storage.k8s.io_volumesnapshots.yaml" \
    -f "$crds/groupsnapshot.storage.k8s.io_volumegroupsnapshotclasses.yaml" \
    -f "$crds/groupsnapshot.storage.k8s.io_volumegroupsnapshotcontents.yaml" -f "$crds/groupsnapshot.storage.k8s.io_volumegroupsnapshots.yaml"
  "$kubectl" apply -f "$controller/rbac-snapshot-controller.yaml"
  sed -e "s#image: .*#image: $(image_of snapshot-controller)#" -e 's/imagePullPolicy: .*/imagePullPolicy: IfNotPresent/' \
    -e '/leader-election=/a\            - "--feature-gates=CSIVolumeGroupSnapshot=true"' \
    -e 's/replicas: .*/replicas: 1/' -e 's/minReadySeconds: .*/minReadySeconds: 1/' -e 's/leader-election=true/leader-election=false/' \
    "$controller/setup-snapshot-controller.yaml" | "$kubectl" apply -f -
  "$kubectl" -n kube-system rollout status deployment/snapshot-controller --timeout=120s
}

# install_volumes: local volumes of the class gemel-backing, two on each worker, in the filesystem that it has for them.
install_volumes() {
  local node i
  {
    cat <<EOF
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: gemel-backing}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Retain
EOF
    for node in "${NODES[@]:1}"; do
      for i in 0 1; do
        docker exec "$node" mkdir -p "/var/lib/gemel-backing/v$i"
        cat <<EOF
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: backing-$node-$i}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: gemel-backing
  local: {path: /var/lib/gemel-backing/v$i}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: kubernetes.io/hostname, operator: In, values: [$node]}
EOF
      done
    done
  } | "$kubectl" apply -f -
}
