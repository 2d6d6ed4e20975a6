# shellcheck shell=bash
# A filesystem per node for backing volumes: XFS with reflink, in a sparse file of the machine, bound into the node at
# /var/lib/gemel-backing. Each its own, so that one can be full or lost without its neighbours. lab.sh sources it.
BACKING=$LAB/backing
NODES=("$CLUSTER-control-plane" "$CLUSTER-worker" "$CLUSTER-worker2" "$CLUSTER-worker3")
BACKING_SIZE=${BACKING_SIZE:-20G}

backing_up() {
  local node
  need mkfs.xfs xfsprogs
  for node in "${NODES[@]}"; do
    mountpoint -q "$BACKING/$node" && continue
    mkdir -p "$BACKING/$node"
    rm -f "$BACKING/$node.xfs" # an unmounted one belonged to a cluster that is gone
    truncate -s "$BACKING_SIZE" "$BACKING/$node.xfs"
    mkfs.xfs -q -m reflink=1 "$BACKING/$node.xfs"
    mount -o loop,noatime "$BACKING/$node.xfs" "$BACKING/$node"
    check_reflink "$BACKING/$node"
  done
}

# check_reflink: a lab whose snapshots are full copies would prove nothing.
check_reflink() {
  echo data >"$1/probe"
  cp --reflink=always "$1/probe" "$1/probe.copy"
  rm "$1/probe" "$1/probe.copy"
}

backing_down() {
  local node
  for node in "${NODES[@]}"; do
    if mountpoint -q "$BACKING/$node"; then
      detach_loops_on "$BACKING/$node"
      umount "$BACKING/$node"
    fi
    rm -f "$BACKING/$node.xfs"
  done
  [ ! -d "$BACKING" ] || rmdir "$BACKING"/* "$BACKING"
}

# detach_loops_on: a pod that was killed may have left loop devices on files of this filesystem. They outlive its node and keep the
# filesystem busy. They are known by its device number, since a path in a pod means nothing here.
detach_loops_on() {
  local filesystem device on
  filesystem=$(mountpoint -d "$1")
  losetup -n -O NAME,BACK-MAJ:MIN | while read -r device on; do
    if [ "$on" = "$filesystem" ]; then losetup -d "$device"; fi
  done
}
