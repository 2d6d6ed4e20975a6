package iscsi

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// memory is a device that works: a disk of 512-byte blocks in memory, with commands that can be
// held up.
type memory struct {
	mu     sync.Mutex
	disk   []byte
	held   map[*scsi.Task]bool
	seen   []scsi.Task // copies of the transport's part
	forget atomic.Bool // do not keep seen
	tmfs   []scsi.TMF
	opened int
	closed int
	gate   chan struct{} // not nil: CloseNexus waits for it
	block  chan struct{} // not nil: opFail waits for it inside Submit
	starts func(*scsi.Task)
	wg     sync.WaitGroup
}

func newMemory(size int) *memory {
	d := &memory{disk: make([]byte, size), held: map[*scsi.Task]bool{}}
	for i := range d.disk {
		d.disk[i] = byte(i/512 + i)
	}
	return d
}

func (d *memory) OpenNexus(id scsi.NexusID) *scsi.Nexus {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened++
	return &scsi.Nexus{ID: id}
}

func (d *memory) CloseNexus(n *scsi.Nexus, done func()) {
	d.mu.Lock()
	gate := d.gate
	d.mu.Unlock()
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		if gate != nil {
			<-gate
		}
		d.abort(func(t *scsi.Task) bool { return t.Nexus == n })
		d.mu.Lock()
		d.closed++
		d.mu.Unlock()
		done()
	}()
}

func (d *memory) abort(match func(*scsi.Task) bool) int {
	d.mu.Lock()
	var victims []*scsi.Task
	for t := range d.held {
		if match(t) {
			victims = append(victims, t)
			delete(d.held, t)
		}
	}
	d.mu.Unlock()
	for _, t := range victims {
		t.Aborted = true
		t.Done(t)
	}
	return len(victims)
}

// release completes every held command.
func (d *memory) release() int { return d.end(nil) }

// end is release that leaves the answers in out.
func (d *memory) end(out *scsi.Outbox) int {
	d.mu.Lock()
	var all []*scsi.Task
	for t := range d.held {
		all = append(all, t)
		delete(d.held, t)
	}
	d.mu.Unlock()
	for _, t := range all {
		t.Ends = out
		t.Done(t)
	}
	return len(all)
}

func (d *memory) holding() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.held)
}

func (d *memory) Submit(t *scsi.Task) bool {
	if !d.forget.Load() {
		d.mu.Lock()
		d.seen = append(d.seen, scsi.Task{Nexus: t.Nexus, LUN: t.LUN, CDB: t.CDB, LongCDB: append([]byte(nil), t.LongCDB...), Attr: t.Attr,
			Tag: t.Tag, Arrived: t.Arrived, DataOut: append([]byte(nil), t.DataOut...), Expected: t.Expected, Read: t.Read, Write: t.Write})
		d.mu.Unlock()
	}
	off := int(binary.BigEndian.Uint32(t.CDB[2:])) * 512
	n := int(binary.BigEndian.Uint16(t.CDB[7:])) * 512
	switch t.CDB[0] {
	case opRead, opAsync:
		if off+n > len(d.disk) {
			t.Status, t.Sense = scsi.StatusCheckCondition, []byte{0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0}
			return true
		}
		t.Transfer = n
		t.DataIn = t.Alloc(n)
		d.mu.Lock()
		copy(t.DataIn, d.disk[off:off+n])
		d.mu.Unlock()
		if t.CDB[0] == opAsync {
			d.wg.Add(1)
			go func() {
				defer d.wg.Done()
				t.Done(t)
			}()
			return false
		}
	case opWrite:
		t.Transfer = n
		if off+n <= len(d.disk) {
			d.mu.Lock()
			copy(d.disk[off:off+n], t.DataOut)
			d.mu.Unlock()
		}
	case opHold:
		d.mu.Lock()
		d.held[t] = true
		starts := d.starts
		d.mu.Unlock()
		if starts != nil {
			starts(t)
		}
		return false
	case opFail:
		d.mu.Lock()
		block := d.block
		d.mu.Unlock()
		if block != nil {
			<-block
		}
		t.Status, t.Sense = scsi.StatusCheckCondition, []byte{0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0}
	}
	return true
}

func (d *memory) TaskManagement(r scsi.TMF, done func(scsi.TMResponse)) {
	d.mu.Lock()
	d.tmfs = append(d.tmfs, r)
	d.mu.Unlock()
	switch r.Function {
	case scsi.TMFAbortTask:
		if d.abort(func(t *scsi.Task) bool { return t.Tag == r.Tag && t.Nexus == r.Nexus }) == 0 {
			done(scsi.TMFNoSuchTask)
			return
		}
	case scsi.TMFAbortTaskSet, scsi.TMFLUNReset:
		d.abort(func(t *scsi.Task) bool { return t.LUN == r.LUN })
	case scsi.TMFTargetColdReset, scsi.TMFTargetWarmReset:
		d.abort(func(t *scsi.Task) bool { return true })
	default:
		done(scsi.TMFNotSupported)
		return
	}
	done(scsi.TMFComplete)
}

func (d *memory) commands() []scsi.Task {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]scsi.Task(nil), d.seen...)
}
