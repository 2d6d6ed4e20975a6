package node

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/store"
)

// A silence has everything flushed once, and not again while that is under way.
func TestSilenceFlushesAhead(t *testing.T) {
	p := newTestPair(t)
	var flushes atomic.Int32
	var slow atomic.Bool
	release := make(chan struct{})
	p.cfg[1].Faults = func(op, path string, _, _ int64) error {
		if op == store.FaultSync && strings.HasSuffix(path, ".img") {
			flushes.Add(1)
			if slow.Load() {
				<-release
			}
		}
		return nil
	}
	p.cfg[0].CheckpointIdle, p.cfg[1].CheckpointIdle = Duration(time.Minute), Duration(time.Minute) // no other flush
	p.startBoth()
	_, m := p.lun(8<<20, "a")
	p.write(p.device(m), 0, 7)
	n, before := p.nodes[1], flushes.Load()
	var f flushAhead
	flushed := func(want int32, silent bool) {
		t.Helper()
		f.look(n, silent)
		p.until("all that was begun has been flushed", func() bool { return !f.busy.Load() })
		if got := flushes.Load() - before; got != want {
			t.Fatalf("%d flushes, want %d", got, want)
		}
	}
	flushed(0, false)
	flushed(1, true)
	flushed(1, true) // the same silence
	flushed(1, false)
	slow.Store(true)
	f.look(n, true)
	p.until("a flush is at the disk", func() bool { return flushes.Load()-before == 2 })
	f.look(n, false)
	f.look(n, true)
	slow.Store(false)
	close(release)
	flushed(2, false)
}
