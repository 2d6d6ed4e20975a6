package nodesim

import (
	"bytes"
	"context"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// compare looks at what both nodes have to have alike: an entry gets through, reservations and
// modes, and the data of every LUN.
func (w *world) compare() {
	if w.caller == nil || len(w.luns) == 0 {
		return
	}
	rng := w.rand(13)
	if _, err := call(w.caller, rng, "a last entry", func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.Mapping, error) {
		return t.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: w.luns[0].id, HostIqn: hostName("last")})
	}); err != nil {
		w.fail("the last entry: %v", err)
		return
	}
	if !w.awaitSync() {
		return
	}
	a, _ := w.nodes[0].view()
	b, _ := w.nodes[1].view()
	if a.LogIndex != b.LogIndex {
		w.fail("node a has applied entry %d, node b entry %d", a.LogIndex, b.LogIndex)
	}
	w.compareLists()
	if len(w.fencers) > 0 {
		w.compareReservations(w.fencers[0])
	}
	for _, l := range append(w.luns, w.shared) {
		if l != nil {
			w.compareData(l)
		}
	}
}

func (w *world) compareData(l *lun) {
	var sums [2][]byte
	for i, m := range w.nodes {
		b, err := w.content(m.live().dir, l.id)
		if err != nil {
			w.fail("%v", err)
			return
		}
		sums[i] = b
	}
	if !bytes.Equal(sums[0], sums[1]) {
		at := 0
		for at < len(sums[0]) && at < len(sums[1]) && sums[0][at] == sums[1][at] {
			at++
		}
		w.fail("the copies of %s differ from byte %d on", l.name, at)
	}
}

// compareReservations asks both nodes.
func (w *world) compareReservations(f *fencer) {
	for _, q := range []struct {
		what string
		cdb  []byte
	}{{"READ KEYS", prIn(0)}, {"READ RESERVATION", prIn(1)}, {"READ FULL STATUS", prIn(3)}, {"MODE SENSE", []byte{0x5a, 0x08, 0x3f, 0, 0, 0, 0, 4, 0, 0}}} {
		var got [2][]byte
		for i := range got {
			b := make([]byte, 4096)
			for range 50 {
				a := f.exec(i, q.what, 0, q.cdb, nil, b)
				if a.ok {
					got[i] = b[:a.got]
					break
				}
				if a.err == nil && a.status == 0x18 { // RESERVATION CONFLICT: a command that needs no more than to be asked
					got[i] = []byte("conflict")
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		if got[0] == nil || got[1] == nil || !bytes.Equal(got[0], got[1]) {
			w.fail("%s of %s: node a says % x, node b % x", q.what, f.lun.name, got[0], got[1])
		}
	}
}
