#!/usr/bin/env bash
# Installs the Debian packages that tests, demo and benchmarks use. Each has its reason beside it; installed packages stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
command -v go >/dev/null || { echo "Go is missing: install the version that go.mod names" >&2; exit 1; }
missing=0
need mkfs.xfs xfsprogs || missing=1         # volumes, and state folders that share extents
need mkfs.ext4 e2fsprogs || missing=1       # volumes
need fusermount3 fuse3 || missing=1         # userspace attach
need blkid util-linux || missing=1          # is a device empty
need ip iproute2 || missing=1               # namespaces of the chaos run
need nft nftables || missing=1              # its partitions and losses
need iscsi-test-cu libiscsi-bin || missing=1 # conformance
need jq jq || missing=1                     # the page on volumes without Gemel
need git git || missing=1                   # the release that this tree is upgraded from, out of the history
need tgtd tgt || missing=1                  # the peer of the benchmark, a second target for the initiator's tests
need qemu-storage-daemon qemu-system-common || missing=1 # the benchmark's mirrored peer
[ "$missing" = 0 ] || say "without these some tests are skipped, by name"
