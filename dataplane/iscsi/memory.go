package iscsi

import (
	"errors"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// What a session holds of the server's memory (budget.go). The reader of a connection never waits
// for any of it.

// smallCommand is what a session that holds nothing gets beyond the budget (bytes), or FirstBurst
// if that is more.
const smallCommand = 256 << 10

// maxUnread bounds the answers of a session that no command's memory accounts for: to pings,
// rejects, the headers of answers. An initiator that reads what it is answered leaves some hundred
// bytes.
const maxUnread = 4 << 20

var errUnread = errors.New("the initiator does not read its answers")

// kind of memory within a session. Reads and writes have lines of their own: an initiator may send
// the data of a write only when it has the answer to a read.
const (
	ofReads = iota
	ofWrites
	kinds
)

// share is a session's part of the larger part of the budget, for one kind.
type share struct {
	held    int
	waiting []*command // in order
}

// memoryState is what a session holds, guarded by its mutex, but for inLine, which is the budget's.
type memoryState struct {
	shares  [kinds]share
	unasked int // bytes of the smaller part
	unread  int // bytes of answers queued beside that
	handing int // commands on their way from the line to the Device
	inLine  bool
}

func (c *conn) kindOf(cmd *command) *share {
	if cmd.task.Write {
		return &c.shares[ofWrites]
	}
	return &c.shares[ofReads]
}

func (c *conn) holdsNothing() bool {
	return c.shares[ofReads].held+c.shares[ofWrites].held+c.unasked == 0
}

func (c *conn) small() int { return max(smallCommand, classSize(c.srv.cfg.Limits.FirstBurst)) }

// sessionMax is the most that a session holds of each kind once it holds any: no session has more
// than a quarter.
func (s *Server) sessionMax() int {
	return min(s.cfg.Limits.SessionMemory, max(int(s.memory.forAsked()/4), classSize(s.cfg.Limits.Transfer)))
}

// reserve takes what a command needs. With turn it is the command's turn in the line. mu is held.
func (c *conn) reserve(cmd *command, turn bool) bool {
	sh, b := c.kindOf(cmd), &c.srv.memory
	switch {
	case !turn && len(sh.waiting) > 0, !c.fits(cmd):
		return false
	case c.holdsNothing() && cmd.need <= c.small():
		b.asked.Add(int64(cmd.need))
	case !b.takeAsked(cmd.need, turn):
		return false
	}
	cmd.asked = cmd.need
	sh.held += cmd.need
	return true
}

// fits reports whether a session's own limit leaves room for a command. mu is held.
func (c *conn) fits(cmd *command) bool {
	sh := c.kindOf(cmd)
	return sh.held == 0 || sh.held+cmd.need <= c.srv.sessionMax()
}

// reserveUnasked takes n bytes for data that comes whether or not there is room. mu is held.
func (c *conn) reserveUnasked(cmd *command, n int) bool {
	b := &c.srv.memory
	switch {
	case c.holdsNothing() && n <= c.small():
		b.unasked.Add(int64(n))
	case c.unasked > 0 && c.unasked+n > max(int(b.forUnasked()/4), c.small()), !b.takeUnasked(n):
		return false
	}
	cmd.unasked = n
	c.unasked += n
	return true
}

// wait puts a command into its line. mu is held.
func (c *conn) wait(cmd *command) {
	sh := c.kindOf(cmd)
	cmd.waits = true
	sh.waiting = append(sh.waiting, cmd)
	c.srv.stats.MemoryWaits.Add(1)
	c.wantMemory()
}

// unwait takes a command from its line. mu is held.
func (c *conn) unwait(cmd *command) {
	sh := c.kindOf(cmd)
	cmd.waits = false
	for i, w := range sh.waiting {
		if w == cmd {
			sh.waiting = append(sh.waiting[:i], sh.waiting[i+1:]...)
			break
		}
	}
	c.wantMemory() // of those behind it
}

// wantMemory asks for a turn when commands wait. mu is held.
func (c *conn) wantMemory() {
	if (len(c.shares[ofReads].waiting) > 0 || len(c.shares[ofWrites].waiting) > 0) && !c.killed && !c.ending {
		c.srv.memory.enqueue(c)
	}
}

// giveBack returns what a command holds. mu is held.
func (c *conn) giveBack(cmd *command) {
	if cmd.asked == 0 && cmd.unasked == 0 {
		return
	}
	c.kindOf(cmd).held -= cmd.asked
	c.unasked -= cmd.unasked
	asked, unasked := cmd.asked, cmd.unasked
	cmd.asked, cmd.unasked = 0, 0
	c.srv.memory.give(asked, unasked)
	c.wantMemory()
}

// grantNext serves one command of the session's lines: served tells that it did. more tells that
// another turn is wanted: at once after a command was served, else when there is memory. A session
// whose own limit is met asks itself when it has given back, and so does the reader when it has
// filled the buffer at hand. mu is held, by the server's goroutine for that.
//
// With scarce the memory has run out before this session's turn: it gets what is beyond the budget
// only.
func (c *conn) grantNext(scarce bool) (served, more bool) {
	if c.killed || c.ending {
		return false, false
	}
	for k := range c.shares {
		sh := &c.shares[k]
		if len(sh.waiting) == 0 {
			continue
		}
		cmd := sh.waiting[0]
		if cmd.busy || !c.fits(cmd) {
			continue
		}
		if scarce && !(c.holdsNothing() && cmd.need <= c.small()) || !c.reserve(cmd, true) {
			more = true
			continue
		}
		sh.waiting = append(sh.waiting[:0], sh.waiting[1:]...)
		cmd.waits = false
		if cmd.task.Write {
			c.granted(cmd)
		} else {
			c.handOver(cmd)
		}
		return true, len(c.shares[ofReads].waiting)+len(c.shares[ofWrites].waiting) > 0
	}
	return false, more
}

// handOver gives a read that has waited to the Device, which may take its time: not on the
// goroutine that serves all sessions. mu is held.
func (c *conn) handOver(cmd *command) {
	if cmd.aborted {
		cmd.task.Status = scsi.StatusTaskAborted
		c.complete(cmd)
		return
	}
	cmd.state = submitted
	c.submitted++
	c.handing++
	cmd.task.Arrived, cmd.task.Starts = cmd.arrived, nil // R11b: what it waited counts
	c.srv.wg.Go(func() {
		over := c.srv.device.Submit(&cmd.task)
		c.mu.Lock()
		if over {
			c.complete(cmd)
		}
		c.handing--
		c.cond.Broadcast()
		c.unlockAndSend()
	})
}

// settled waits until no command is on its way to the Device: what is to end commands has to find
// them there.
func (c *conn) settled() {
	c.mu.Lock()
	for c.handing > 0 {
		c.cond.Wait()
	}
	c.mu.Unlock()
}

// charge counts bytes of queued PDUs that no command accounts for.
func (c *conn) charge(n int) {
	c.tail.charge += n
	c.unread += n
	c.srv.memory.other.Add(int64(n))
}

// flooded refuses to continue with an initiator that leaves its answers unread: it could cause any
// number of them. mu is held.
func (c *conn) flooded() error {
	if c.unread > min(maxUnread, c.srv.cfg.Limits.SessionMemory) {
		return errUnread
	}
	return nil
}

// stalled tells why the memory of a session is not used: for longer than WriteTimeout data that was
// asked for, or that was to come unasked, has not come, or answers have not been taken.
func (c *conn) stalled(now int64) string {
	limit := int64(c.srv.cfg.WriteTimeout)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sendingAt != 0 && now-c.sendingAt > limit && c.shares[ofReads].held > 0 {
		return "it does not read its answers, while other sessions wait for memory"
	}
	if c.shares[ofWrites].held+c.unasked == 0 {
		return ""
	}
	for _, cmd := range c.table {
		for ; cmd != nil; cmd = cmd.next {
			if cmd.state == gathering && cmd.seq != seqNone && now-cmd.askedAt > limit {
				return "it does not send the data of a write, while other sessions wait for memory"
			}
		}
	}
	return ""
}

// dropStalled ends the sessions that keep memory without using it while others need it.
func (s *Server) dropStalled(live []*conn, now int64) {
	if s.memory.waiters.Load() == 0 && now-s.refusedAt.Load() > int64(s.cfg.WriteTimeout) {
		return
	}
	for _, c := range live {
		if why := c.stalled(now); why != "" {
			s.stats.Stalled.Add(1)
			c.kill(why)
		}
	}
}
