package iscsi

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// The output queue. PDUs are queued under the connection's mutex, in StatSN order. Who sends them:
//   - while the reader works through its input (batching) no goroutine: the reader sends all of it
//     at the end, in one writev;
//   - else the goroutine that queued, at once or when it has ended the commands at hand
//     (scsi.Outbox), unless another goroutine is sending, which then takes the new ones too;
//   - when the socket is full the rest is left to the connection's writer goroutine, so that
//     neither the reader nor a goroutine of the Device ever waits for a slow initiator. The writer
//     gives up after WriteTimeout.

const (
	// batchBytes is when the reader sends before its input is used up: large answers should be on
	// their way while the next are being made.
	batchBytes = 256 << 10

	chunkArena = 8 << 10
	chunkIovs  = 128
	// One PDU needs at most this of a chunk beside data that is sent in place.
	pduArena = pdu.HeaderLen + pdu.DigestLen + inlineData + 3 + pdu.DigestLen
	pduIovs  = 3
	// inlineData is how much data a PDU may have copied into the arena (sense, short text).
	inlineData = 2 + 252
)

// chunk is a run of queued PDUs: the small parts in an arena, the data by reference.
type chunk struct {
	next   *chunk
	used   int // of arena
	first  int // iovs before it are sent
	n      int
	charge int
	bytes  int
	done   *command // commands whose last PDU is here
	bufs   []*buffer
	open   bool // the last iov ends at used: the next small part can join it
	iov    [chunkIovs]unix.Iovec
	arena  [chunkArena]byte
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

type output struct {
	head, tail *chunk
	queued     int  // bytes in chunks
	inBatch    bool // the reader's own copy of batching
	batching   bool // the reader will flush
	sending    bool
	writerOn   bool
	kick       chan struct{}
	writerWG   sync.WaitGroup
	sense      [inlineData]byte // scratch: a local would escape to the heap
}

// begin reserves room for a PDU and returns its zeroed header with op. The caller fills it and
// calls end.
func (c *conn) begin(op pdu.Opcode) pdu.BHS {
	k := c.tail
	if k == nil || k.used+pduArena > chunkArena || k.n+pduIovs > chunkIovs {
		k = chunks.Get().(*chunk)
		if c.tail == nil {
			c.head = k
		} else {
			c.tail.next = k
		}
		c.tail = k
	}
	h := pdu.BHS(k.arena[k.used : k.used+pdu.HeaderLen])
	clear(h)
	h.SetOp(op, false)
	h.SetFlags(pdu.Final)
	return h
}

// end queues the PDU of the last begin with its data. With inline the data, at most inlineData
// bytes, is copied, else it must stay until the chunk is sent.
func (c *conn) end(h pdu.BHS, data []byte, inline bool) {
	k := c.tail
	h.SetDataLen(len(data))
	h.PutU32(pdu.OffExpCmdSN, c.expCmdSN)
	h.PutU32(pdu.OffMaxCmdSN, c.maxCmdSN)
	k.bytes += pdu.HeaderLen + len(data)
	c.queued += pdu.HeaderLen + len(data)
	start := k.used
	k.used += pdu.HeaderLen
	if c.params.HeaderDigest {
		pdu.PutDigest(k.arena[k.used:], pdu.Digest(h))
		k.used += pdu.DigestLen
	}
	if len(data) > 0 && inline {
		k.used += copy(k.arena[k.used:], data)
	}
	k.add(start)
	if len(data) == 0 {
		return
	}
	if !inline {
		k.iov[k.n] = iovec(data)
		k.n++
		k.open = false
	}
	start = k.used
	for range pdu.Pad(len(data)) {
		k.arena[k.used] = 0
		k.used++
	}
	if c.params.DataDigest {
		pdu.PutDigest(k.arena[k.used:], pdu.DataDigest(data))
		k.used += pdu.DigestLen
	}
	k.add(start)
}

// add makes arena[start:used] part of what is sent, joined to the part before it where they touch.
func (k *chunk) add(start int) {
	switch {
	case start == k.used:
	case k.open:
		k.iov[k.n-1].SetLen(int(k.iov[k.n-1].Len) + k.used - start)
	default:
		k.iov[k.n] = iovec(k.arena[start:k.used])
		k.n++
		k.open = true
	}
}

// status advances StatSN: every PDU that carries a status has its own.
func (c *conn) status(h pdu.BHS) {
	h.PutU32(pdu.OffStatSN, c.statSN)
	c.statSN++
}

// beginBatch tells other goroutines that the reader will send.
func (c *conn) beginBatch() {
	if c.inBatch {
		return
	}
	c.inBatch = true
	c.mu.Lock()
	c.batching = true
	c.mu.Unlock()
}

// flushBatch sends what is queued, from the reader: first what others wait for to begin.
func (c *conn) flushBatch() {
	c.starts.Send()
	if !c.inBatch {
		return
	}
	c.inBatch = false
	c.mu.Lock()
	c.batching = false
	c.unlockAndSend()
}

// Send implements scsi.Sender, for answers that a goroutine has left to leave together.
func (c *conn) Send() {
	c.mu.Lock()
	c.unlockAndSend()
}

// unlockAndSend is called with mu held after PDUs were queued; it releases it.
func (c *conn) unlockAndSend() {
	if c.head == nil || c.batching || c.sending {
		c.mu.Unlock()
		return
	}
	c.sending = true
	c.mu.Unlock()
	if c.send(false) {
		return
	}
	// Full: the writer continues, and is still the one that sends.
	c.mu.Lock()
	c.sendingAt = c.srv.cfg.Clock()
	if !c.writerOn {
		c.writerOn = true
		c.writerWG.Add(1)
		go c.writer()
	}
	c.mu.Unlock()
	c.kick <- struct{}{} // never blocks: one kick at most per sender, and there is one sender
}

// send writes until the queue is empty and gives up the role of sender: true. With wait false it
// returns false, still the sender, when the socket is full.
func (c *conn) send(wait bool) bool {
	for {
		c.mu.Lock()
		k := c.head
		if k == nil || c.batching && !wait {
			c.sending, c.sendingAt = false, 0
			c.cond.Broadcast()
			c.mu.Unlock()
			return true
		}
		// From here the chunk is ours: no other goroutine adds to what is being sent.
		if c.tail == k {
			c.tail = nil
		}
		c.head = nil
		rest := k.next
		c.mu.Unlock()
		err := c.sendChunk(k, wait)
		c.mu.Lock()
		if err != nil {
			c.requeue(k, rest)
			if errors.Is(err, errFull) {
				c.mu.Unlock()
				return false
			}
			c.discardLocked()
			c.sending = false
			c.cond.Broadcast()
			c.mu.Unlock()
			c.kill("write: " + err.Error())
			return true
		}
		c.recycle(k)
		if rest != nil {
			c.requeue(rest, rest.next)
		}
		c.mu.Unlock()
	}
}

// requeue puts k, followed by rest, back before what was queued meanwhile.
func (c *conn) requeue(k, rest *chunk) {
	k.next = rest
	last := k
	for last.next != nil {
		last = last.next
	}
	last.next = c.head
	c.head = k
	if c.tail == nil {
		c.tail = last
	}
}

func (c *conn) sendChunk(k *chunk, wait bool) error {
	for k.first < k.n {
		if wait {
			if err := c.sock.nc.SetWriteDeadline(time.Now().Add(c.srv.cfg.WriteTimeout)); err != nil {
				return err
			}
		}
		c.srv.stats.Batches.Add(1)
		n, err := c.sock.write(k.iov[k.first:k.n], wait)
		if err != nil {
			if errors.Is(err, errFull) {
				c.srv.stats.WriteWouldBlk.Add(1)
			}
			return err
		}
		for n > 0 {
			v := &k.iov[k.first]
			if n < int(v.Len) {
				*v = iovec(iovecBytes(v)[n:])
				break
			}
			n -= int(v.Len)
			k.first++
		}
	}
	return nil
}

// recycle returns what a sent or discarded chunk held. mu is held.
func (c *conn) recycle(k *chunk) {
	for cmd := k.done; cmd != nil; {
		next := cmd.next
		c.release(cmd)
		cmd = next
	}
	for i, b := range k.bufs {
		putBuffer(b)
		k.bufs[i] = nil
	}
	c.unread -= k.charge
	c.srv.memory.other.Add(-int64(k.charge))
	if c.sendingAt != 0 {
		c.sendingAt = c.srv.cfg.Clock() // it gets on
	}
	c.queued -= k.bytes
	clear(k.iov[:k.n])
	k.next, k.used, k.first, k.n, k.charge, k.bytes, k.done, k.bufs, k.open = nil, 0, 0, 0, 0, 0, nil, k.bufs[:0], false
	chunks.Put(k)
	c.cond.Broadcast()
}

// discardLocked forgets everything queued.
func (c *conn) discardLocked() {
	for k := c.head; k != nil; {
		next := k.next
		c.recycle(k)
		k = next
	}
	c.head, c.tail = nil, nil
}

// writer sends what others could not without waiting.
func (c *conn) writer() {
	defer c.writerWG.Done()
	for range c.kick {
		c.send(true)
		// A deadline left behind would fail a later write. An error means closed, which the next
		// write reports.
		_ = c.sock.nc.SetWriteDeadline(time.Time{})
	}
}

// stopWriter ends the output of a closed connection. No goroutine queues any more.
func (c *conn) stopWriter() {
	c.mu.Lock()
	for c.sending {
		c.cond.Wait()
	}
	c.discardLocked()
	c.mu.Unlock()
	close(c.kick)
	c.writerWG.Wait()
}
