package node

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// A write that waits for its disk, at the partner or at the owner, holds up its own LUN only: what
// else comes over the link continues. When the disk continues too, its writes take effect in the
// order they came.
func TestSlowWriteHoldsNothingElseUp(t *testing.T) {
	for name, owner := range map[string]string{"mirrored": "b", "the owner's own": "a"} {
		t.Run(name, func(t *testing.T) {
			h := &heldIO{op: store.FaultWrite}
			p := newTestPair(t)
			p.cfg[0].Faults = h.fault
			for i := range p.cfg {
				p.cfg[i].Lease = Duration(2 * time.Second) // a machine that is busy should cause no fail-over
			}
			p.startBoth()
			id, m := p.lun(8<<20, owner)
			_, ma := p.lun(8<<20, "a")
			_, mb := p.lun(8<<20, "b")
			d := p.device(m)
			others := map[string]*initiator.Device{"owner a": p.device(ma), "owner b": p.device(mb)}
			for _, x := range []*initiator.Device{d, others["owner a"], others["owner b"]} {
				if _, err := x.WriteAt(p.ctx, pattern(0), 0); err != nil { // its region has its bit now
					t.Fatal(err)
				}
			}
			h.mu.Lock()
			h.file = id
			h.mu.Unlock()
			release := h.hold(t)
			const n = 16
			done := make(chan error, n)
			for i := range int64(n) {
				go func() {
					_, err := d.WriteAt(p.ctx, bytes.Repeat([]byte{byte(i + 1)}, 8192), i<<12) // each overlaps its neighbours
					done <- err
				}()
			}
			p.until("a write waits for the disk", func() bool { return h.under.Load() > 0 })
			for i := range int64(10) {
				for name, x := range others {
					if _, err := x.WriteAt(p.ctx, pattern(0), i<<12); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
			}
			p.whole()
			release()
			for range n {
				if err := await(t, "the writes", done); err != nil {
					t.Error(err)
				}
			}
			p.whole()
			if !bytes.Equal(p.bytes(0, id), p.bytes(1, id)) {
				t.Error("the copies differ")
			}
		})
	}
}

// What is in a lane is done one at a time, in order, and its goroutine ends.
func TestLaneKeepsOrder(t *testing.T) {
	const adders, each = 4, 2000
	var wg, add sync.WaitGroup
	var order [adders][]uint64 // no lock: one at a time
	l := &lane{wg: &wg, do: func(c *change) { order[c.link] = append(order[c.link], c.msg.ID) }}
	for k := range uint64(adders) {
		add.Go(func() {
			for i := range uint64(each) {
				l.add(change{link: k, msg: &pair.Msg{ID: i}})
			}
		})
	}
	add.Wait()
	wg.Wait()
	for k := range order {
		if len(order[k]) != each || !slices.IsSorted(order[k]) {
			t.Errorf("of adder %d: %d, in order: %v", k, len(order[k]), slices.IsSorted(order[k]))
		}
	}
	if l.running || len(l.queue) > 0 {
		t.Error("it has not ended")
	}
}
