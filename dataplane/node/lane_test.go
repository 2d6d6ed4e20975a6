package node

import (
	"bytes"
	"slices"
	"strings"
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
	var tasks tasks
	var add sync.WaitGroup
	var order [adders][]uint64 // no lock: one at a time
	l := &lane{tasks: &tasks, do: func(list []change) {
		for _, c := range list {
			order[c.link] = append(order[c.link], c.msg.ID)
		}
	}}
	for k := range uint64(adders) {
		add.Go(func() {
			for i := range uint64(each) {
				l.add(change{link: k, msg: &pair.Msg{ID: i}})
			}
		})
	}
	add.Wait()
	tasks.Wait()
	for k := range order {
		if len(order[k]) != each || !slices.IsSorted(order[k]) {
			t.Errorf("of adder %d: %d, in order: %v", k, len(order[k]), slices.IsSorted(order[k]))
		}
	}
	if l.running.Load() || len(l.queue) > 0 {
		t.Error("it has not ended")
	}
}

// gates hold writes into images back by their place.
type gates struct {
	mu    sync.Mutex
	shut  map[int64]chan struct{}
	under map[int64]bool // those that wait
}

func (g *gates) fault(op, path string, off, _ int64) error {
	g.mu.Lock()
	c := g.shut[off]
	if op != store.FaultWrite || !strings.HasSuffix(path, ".img") || c == nil {
		g.mu.Unlock()
		return nil
	}
	g.under[off] = true
	g.mu.Unlock()
	<-c
	return nil
}

// close holds writes to a place back until open is called.
func (g *gates) close(t *testing.T, off int64) (open func()) {
	c := make(chan struct{})
	g.mu.Lock()
	g.shut[off] = c
	g.mu.Unlock()
	open = sync.OnceFunc(func() { close(c) })
	t.Cleanup(open)
	return open
}

func (g *gates) waits(off int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.under[off]
}

// An answer does not wait for the disk of the next command: of writes that are in a lane together
// the first one's status comes while the second one waits.
func TestNoAnswerWaitsForTheNextCommand(t *testing.T) {
	for name, owner := range map[string]string{"mirrored": "b", "the owner's own": "a"} {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t)
			g := &gates{shut: map[int64]chan struct{}{}, under: map[int64]bool{}}
			p.cfg[0].Faults = g.fault
			for i := range p.cfg {
				p.cfg[i].Lease = Duration(2 * time.Second) // a machine that is busy should cause no fail-over
			}
			p.startBoth()
			id, m := p.lun(8<<20, owner)
			key, err := parseID(id)
			if err != nil {
				t.Fatal(err)
			}
			d := p.device(m)
			if _, err := d.WriteAt(p.ctx, pattern(0), 0); err != nil { // its region has its bit now
				t.Fatal(err)
			}
			const step = 64 << 10
			open := []func(){g.close(t, 0), func() {}, g.close(t, 2*step)}
			lane := p.nodes[0].md.tables.Load().units[key].lane
			queued := func() int {
				lane.mu.Lock()
				defer lane.mu.Unlock()
				return len(lane.queue)
			}
			var done [3]chan error
			for i := range done {
				done[i] = make(chan error, 1)
				go func() {
					_, err := d.WriteAt(p.ctx, pattern(0), int64(i)*step)
					done[i] <- err
				}()
				p.until("the write is where it belongs", func() bool { return g.waits(0) && queued() == i })
			}
			for i, what := range []string{"the first write", "the write before one that waits", "the last write"} {
				if open[i](); i == 1 {
					p.until("the last write waits", func() bool { return g.waits(2 * step) })
				}
				if err := await(t, what, done[i]); err != nil {
					t.Error(err)
				}
			}
			p.whole()
		})
	}
}
