package node

import (
	"cmp"
	"math"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// places are those of this node's volumes that have members, for its status.
func (n *Node) places() (list []*targetv1.Place) {
	for _, v := range n.store.Volumes() {
		places, slow := v.Places(), n.slowMembers(v)
		if len(places) < 2 && (len(places) == 0 || places[0].Name == store.HomePlace) {
			continue
		}
		for _, p := range places {
			x := &targetv1.Place{Volume: v.Name(), Member: p.Name, Draining: p.Draining, Fast: p.Fast, Id: p.ID(), Reason: slow[p.Number]}
			x.ReadUs = uint32(n.tiers.speeds.read(speedKey{v.Name(), p.Number}).Microseconds())
			if total, free, err := p.Room(); err == nil {
				x.CapacityBytes, x.FreeBytes = uint64(total), uint64(free)
			}
			if p.Draining {
				for _, f := range n.spreadFiles(v) {
					x.ExtentsLeft += uint64(f.CountExtents()[p.Number])
				}
				n.mover.mu.Lock()
				x.Reason = cmp.Or(n.mover.stuck[v.Name()], x.Reason)
				x.SecondsLeft = uint32(min((time.Duration(x.ExtentsLeft)*n.mover.each+time.Second-1)/time.Second, math.MaxUint32))
				n.mover.mu.Unlock()
			}
			list = append(list, x)
		}
	}
	return list
}
