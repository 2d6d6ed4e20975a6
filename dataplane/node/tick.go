package node

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// tickLoop drives the machine's time on a thread of its own (R3) and notices pauses of the process
// (R11b). Between its turns it waits for the machine's deadline only: a finer turn at all times
// would cost an idle node processor time.
func (n *Node) tickLoop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lease := time.Duration(n.cfg.Lease)
	if lease == 0 {
		lease = 500 * time.Millisecond
	}
	every := lease / 25
	t := time.NewTicker(every)
	defer t.Stop()
	due := time.NewTimer(every)
	defer due.Stop()
	var ahead flushAhead
	last := n.boottime()
	for {
		select {
		case <-n.run.ctx.Done():
			return
		case <-t.C:
		case <-due.C:
		}
		now := n.boottime()
		if now-last > int64(time.Second) {
			n.log.Warn("this process was paused", "for", time.Duration(now-last))
			n.iscsi.DropConnections("the target process was paused")
		}
		last = now
		n.run.lastTick.Store(now)
		var deadline int64
		var quiet time.Duration
		n.doTimer(func(m *pair.Machine, at int64) {
			n.wall(m, at)
			m.SetNexuses(len(n.iscsi.Sessions()))
			m.Tick(at)
			if d := m.Deadline(); at < d && d < at+int64(every) {
				deadline = d
			}
			quiet = m.Quiet(at)
		})
		ahead.look(n, quiet >= lease/2)
		if deadline > 0 {
			due.Reset(max(time.Duration(deadline-n.boottime()), leastWait))
		}
	}
}

// flushAhead makes durable what a node that becomes alone has to make durable before it
// acknowledges anything (R8), as soon as the peer has been silent for half a lease: nothing is
// added to it from then on, and hosts do not wait for it when the lease is over. It takes the place
// of nothing: that node flushes everything once more.
type flushAhead struct {
	begun bool        // in this silence
	busy  atomic.Bool // one is under way: a disk may take longer than a silence
}

// look is called each turn.
func (f *flushAhead) look(n *Node, silent bool) {
	if !silent {
		f.begun = false
		return
	}
	if f.begun || !f.busy.CompareAndSwap(false, true) {
		return
	}
	f.begun = true
	n.run.tasks.Go(taskFlush, func() {
		defer f.busy.Store(false)
		n.syncAll(false) // a failure is the store's, and known to it
	})
}

// leastWait keeps tickLoop from turning without an end where the node's clock is slower than that
// of timers.
const leastWait = 100 * time.Microsecond

// wall tells the machine how far the wall clock is ahead.
func (n *Node) wall(m *pair.Machine, now int64) {
	if ns, ok := n.cfg.Outside.Wall(); ok {
		m.Wall(now, ns)
	}
}
