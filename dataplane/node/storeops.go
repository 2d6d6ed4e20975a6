package node

import (
	"bytes"
	"crypto/sha256"
	"errors"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// inlineMax is the largest transfer that is done by the goroutine at hand: beyond it others would
// wait too long.
const inlineMax = 256 << 10

// inlineOp says whether a change ends soon enough to be done at once: writes of the page cache.
func inlineOp(s *scsi.Op, durable bool) bool {
	return (s.Kind == scsi.OpWrite || s.Kind == scsi.OpCompareWrite) && !durable && len(s.Data) <= inlineMax
}

// file finds an open LUN or snapshot.
func (n *Node) file(id pair.LUNID) *store.File { return n.md.tables.Load().file(id) }

func (t *tables) file(id pair.LUNID) *store.File {
	if e := t.units[id]; e != nil {
		return e.file
	}
	return t.snapshots[id]
}

// classify turns a store error into a result.
func classify(err error, write bool) scsi.Result {
	switch {
	case err == nil:
		return scsi.OK
	case errors.Is(err, store.ErrCopyFailed):
		return scsi.Unavailable // it will be aborted
	case errors.Is(err, store.ErrNoSpace):
		return scsi.NoSpace
	case errors.Is(err, store.ErrRange):
		return scsi.OutOfRange
	case errors.Is(err, store.ErrChecksum):
		return scsi.Damaged
	case write:
		return scsi.WriteError
	}
	return scsi.ReadError
}

// runOp executes an op on the local store.
func (n *Node) runOp(o *pair.Op, durable bool) (res scsi.Result) {
	sound := false
	defer n.blame(&sound, o.LUN)
	res = n.runHere(o, durable)
	sound = true
	return res
}

func (n *Node) runHere(o *pair.Op, durable bool) scsi.Result {
	f, s := n.file(o.LUN), o.Cmd
	if f == nil {
		return scsi.Unavailable
	}
	var err error
	switch s.Kind {
	case scsi.OpRead:
		err = f.ReadAt(s.Data, s.Off)
		o.Bad = damagedIn(err)
		return classify(err, false)
	case scsi.OpMapped:
		var run int64
		size, err := f.Size()
		if err == nil && s.Off >= size {
			return scsi.OutOfRange
		}
		if err == nil {
			run, s.Mapped, err = f.Extents(s.Off, size-s.Off)
		}
		s.Extent = scsi.Range{Off: s.Off, Len: run}
		return classify(err, false)
	case scsi.OpUnmap:
		err = unmap(f, s.Ranges, durable)
	default:
		err = write(f, s.Kind, s.Data, s.Off, s.Len, s.Unmap, durable)
	}
	return classify(err, true)
}

// applyMsg executes a mirrored write or a copied range on the local store; without a file there is
// nothing to write to.
func (n *Node) applyMsg(f *store.File, msg *pair.Msg, durable bool) (res scsi.Result) {
	sound := false
	defer n.blame(&sound, msg.LUN)
	res = n.applyTo(f, msg, durable)
	sound = true
	return res
}

func (n *Node) applyTo(f *store.File, msg *pair.Msg, durable bool) scsi.Result {
	if f == nil {
		return scsi.Unavailable
	}
	switch {
	case msg.Type == pair.MsgCopyData:
		n.copies.compared(msg.LUN)
		err := applyCopy(f, msg)
		if err == nil && durable {
			err = f.Sync()
		}
		return classify(err, true)
	case msg.Flags&pair.FlagRepair != 0:
		bad, err := msg.DecodeRanges()
		if err == nil {
			err = parts(msg.Data, msg.Off, bad, func(data []byte, off int64) error { return n.repair(f, data, off) })
		}
		if err == nil && durable {
			err = f.Sync()
		}
		return classify(err, true)
	case msg.Kind == scsi.OpUnmap:
		ranges, err := msg.DecodeRanges()
		if err != nil {
			return scsi.Failed
		}
		return classify(unmap(f, ranges, durable), true)
	}
	return classify(write(f, msg.Kind, msg.Data, msg.Off, msg.Len, msg.Flags&pair.FlagUnmap != 0, durable), true)
}

// repair puts a range back to what the owner has after a refused write (R5, R13). Blocks that are
// as they should be are not written: most are, and a block that a snapshot shares would need space
// that there is none of.
func (n *Node) repair(f *store.File, data []byte, off int64) error {
	const block = 4096
	have := n.io.buffers.get(len(data))
	defer n.io.buffers.put(have)
	err := f.ReadAt(have, off)
	damaged := errors.Is(err, store.ErrChecksum) // then all of it is written
	if err != nil && !damaged {
		return err
	}
	for i := 0; i < len(data); i += block {
		end := min(i+block, len(data))
		if !damaged && bytes.Equal(have[i:end], data[i:end]) && !store.AllZero(data[i:end]) {
			continue
		}
		if err := f.WriteSparse(data[i:end], off+int64(i)); err != nil {
			return err
		}
	}
	return nil
}

func unmap(f *store.File, ranges []scsi.Range, durable bool) error {
	for _, r := range ranges {
		if r.Len == 0 {
			continue
		}
		if err := f.Discard(r.Off, r.Len); err != nil {
			return err
		}
	}
	if durable {
		return f.Sync()
	}
	return nil
}

// write executes the kinds that write data; the length of a WRITE SAME is that of the range, not of
// data.
func write(f *store.File, kind scsi.OpKind, data []byte, off, length int64, canUnmap, durable bool) error {
	if kind != scsi.OpWriteSame {
		if durable {
			return f.WriteAtDurable(data, off)
		}
		return f.WriteAt(data, off)
	}
	var err error
	if store.AllZero(data) {
		if canUnmap {
			err = f.Discard(off, length)
		} else {
			err = f.Zero(off, length)
		}
	} else {
		err = f.WritePattern(data, off, length)
	}
	if err == nil && durable {
		err = f.Sync()
	}
	return err
}

// flush makes a LUN durable, with its checksums if bits are about to be taken back.
func (n *Node) flush(id pair.LUNID, sums bool) scsi.Result {
	if sums {
		return n.checkpoint(id)
	}
	return n.syncLUN(id)
}

func (n *Node) syncLUN(id pair.LUNID) scsi.Result {
	f := n.file(id)
	if f == nil {
		return scsi.Unavailable
	}
	return classify(f.Sync(), true)
}

// probeDisk writes a block to the backing volume of a LUN. False: the store has failed, which is
// reported separately.
func (n *Node) probeDisk(id pair.LUNID) bool {
	volume := ""
	if e := n.md.tables.Load().units[id]; e != nil {
		volume = e.lun.Volume
	}
	v, err := n.store.Volume(volume)
	return err == nil && v.Probe() == nil
}

// syncAll makes everything durable: LUNs, snapshots; metadata and epoch are durable already. A
// joiner's checksums are as well, for no bit tells where it was copied to.
func (n *Node) syncAll(sums bool) scsi.Result {
	sync := (*store.File).Sync
	if sums {
		sync = (*store.File).Checkpoint
	}
	t := n.md.tables.Load()
	for _, e := range t.units {
		if res := classify(sync(e.file), true); res != scsi.OK {
			return res
		}
	}
	for _, f := range t.snapshots {
		if res := classify(sync(f), true); res != scsi.OK {
			return res
		}
	}
	return scsi.OK
}

// compare is the first half of COMPARE AND WRITE, under the op's range lock.
func (n *Node) compare(o *pair.Op) scsi.Result {
	f := n.file(o.LUN)
	if f == nil {
		return scsi.Unavailable
	}
	buf := n.io.buffers.get(len(o.Cmd.Verify))
	defer n.io.buffers.put(buf)
	if err := f.ReadAt(buf, o.Cmd.Off); err != nil {
		o.Bad = damagedIn(err)
		return classify(err, false)
	}
	for i := range buf {
		if buf[i] != o.Cmd.Verify[i] {
			o.Cmd.MiscompareAt = int64(i)
			return scsi.Miscompare
		}
	}
	return scsi.OK
}

func (n *Node) repairRead(o *pair.Op) scsi.Result {
	off, length := o.Range()
	f := n.file(o.LUN)
	if f == nil {
		return scsi.Unavailable
	}
	o.Buf = n.io.buffers.get(int(length))
	var err error
	o.Bad, err = readMarked(f, o.Buf, off)
	return classify(err, false)
}

// copyRead reads a range to be compared with the joiner's. A hole has no sum and no data.
func (n *Node) copyRead(o *pair.Op) scsi.Result {
	off, length := o.Range()
	f := n.file(o.LUN)
	if f == nil {
		return scsi.Unavailable
	}
	hole, err := f.Hole(off, length)
	if err != nil {
		return classify(err, false)
	}
	if o.Bad, o.Hole = nil, hole; hole {
		n.io.buffers.put(o.Buf)
		o.Sum, o.Buf = nil, nil
		return scsi.OK
	}
	if o.Buf == nil { // it may be read again once it is healed
		o.Buf = n.io.buffers.get(int(length))
	}
	if o.Bad, err = readMarked(f, o.Buf, off); err != nil {
		return classify(err, false)
	}
	o.Sum = sumOf(o.Buf)
	return scsi.OK
}

// sumOf is the checksum of a range on the link. It is a cryptographic one: equal sums are taken as
// equal data.
func sumOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

// compareSum is the joiner's side of copyRead: does the range here differ. Where the source has a
// hole this node makes one.
func (n *Node) compareSum(msg *pair.Msg) (need bool, res scsi.Result) {
	f, scrub := n.file(msg.LUN), msg.Flags&pair.FlagScrub != 0
	switch {
	case f == nil && scrub && !n.exists(msg.LUN):
		return true, scsi.Unavailable // deleted: here first, if the owner has not applied that entry yet
	case f == nil || msg.Len <= 0 || msg.Len > 16<<20:
		return false, scsi.Failed
	case scrub:
		return n.scrubSum(f, msg)
	}
	n.copies.compared(msg.LUN)
	hole, err := f.Hole(msg.Off, msg.Len)
	if err != nil {
		return false, classify(err, false)
	}
	if len(msg.Meta) == 0 {
		if !hole {
			err = f.Discard(msg.Off, msg.Len)
		}
		return false, classify(err, true)
	}
	if hole {
		return true, scsi.OK
	}
	buf := n.io.buffers.get(int(msg.Len))
	defer n.io.buffers.put(buf)
	bad, err := readMarked(f, buf, msg.Off)
	if err != nil {
		return false, classify(err, false)
	}
	return len(bad) > 0 || !bytes.Equal(sumOf(buf), msg.Meta), scsi.OK
}

// exists reports whether the metadata has a LUN or snapshot.
func (n *Node) exists(id pair.LUNID) bool {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	key := uuid.UUID(id).String()
	return n.md.state.LUNs[key] != nil || n.md.state.Snapshots[key] != nil
}

// parseID reads a canonical uuid.
func parseID(s string) (pair.LUNID, error) {
	u, err := uuid.Parse(s)
	return pair.LUNID(u), err
}
