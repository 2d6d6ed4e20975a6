package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// hostPaths is what this node knows of the sessions of hosts (R11).
type hostPaths struct {
	asks     map[uint64]*pathAsk // switches under way
	table    map[pathKey]map[scsi.NexusID]bool
	proving  map[*scsi.Liveness]int64 // asked for a sign of life, when
	latest   map[pathKey]*latest      // sessions over which hosts last wrote here
	besideAt int64                    // when those and the units were last gone through
	at       int64                    // last command of a host
	nexuses  int                      // live I_T nexuses at this node
}

// pathKey is a LUN as a host sees it. The paths that are here are those of its nexuses: they do not
// exclude each other, for a host may use several to one node.
type pathKey struct {
	lun  LUNID
	host string
}

// pathAsk is a switch under way: asked of the peer (ours), or asked by the peer and being drained
// here.
type pathAsk struct {
	key   pathKey
	ours  bool
	peer  uint64 // the peer's number, when it asked
	nexus scsi.NexusID
	life  *scsi.Liveness
	at    int64 // when the peer had released it; 0: not yet
	since int64 // when it was asked
}
