package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/memlimit"
)

// Checksums of blocks (R15): the store keeps and compares them, the machine decides what becomes of
// a block that does not match, and this is what it has carried out.

// How much of the checksums is kept in memory, in bytes: 1 MiB is for 1 GiB that is read and
// written at a time.
const (
	minChecksumMemory     = 1 << 20   // that can be asked for
	leastChecksumMemory   = 16 << 20  // where nothing is asked for, however little the process may use
	defaultChecksumMemory = 128 << 20 // without a limit of the process
	checksumShare         = 16        // of what Go may use
)

func (c *Config) sumsOptions() *store.SumsOptions {
	if c.NoChecksums {
		return nil
	}
	budget := c.ChecksumMemory
	if budget == 0 {
		budget = memlimit.Share(checksumShare, leastChecksumMemory, defaultChecksumMemory)
	}
	return &store.SumsOptions{Budget: budget, AdoptRate: cmp.Or(c.ScrubRate, DefaultScrubRate)}
}

func ranges(list []store.Range) (out []scsi.Range) {
	for _, r := range list {
		out = append(out, scsi.Range{Off: r.Off, Len: r.Len})
	}
	return out
}

// damagedIn names the blocks that an error says do not match their checksums.
func damagedIn(err error) []scsi.Range {
	return ranges(store.Mismatched(err))
}

// readMarked reads whole blocks for a copy. What is damaged is named; it is no error.
func readMarked(f *store.File, to []byte, off int64) ([]scsi.Range, error) {
	bad, err := f.ReadMarked(to, off)
	return ranges(bad), err
}

// doubts tells the store of which regions the checksums are not believed when a LUN is opened:
// those whose write-intent bit is set.
func doubts(f *store.File, bits *store.Intents) {
	hot := pair.Regions(bits.Dirty())
	for i := hot.Next(0); i >= 0; i = hot.Next(i + 1) {
		f.Doubt(int64(i)*store.RegionSize, store.RegionSize)
	}
}

// keeps are the bits that stay although a checkpoint takes them back: of regions in doubt, or all
// of them while there is no space to make the checksums durable. The machine need not know: a bit
// that is set for nothing costs a comparison.
func (e *unitEntry) keeps(keep pair.Regions) (pair.Regions, bool) {
	if e.behind.Load() {
		return nil, false
	}
	if e.file.DoubtedBlocks() == 0 {
		return keep, true
	}
	keep = keep.Clone()
	hot := pair.Regions(e.bits.Dirty())
	for i := hot.Next(0); i >= 0; i = hot.Next(i + 1) {
		if e.file.DoubtedIn(int64(i)*store.RegionSize, store.RegionSize) {
			keep.Add(i)
		}
	}
	return keep, true
}

// checkpoint makes a LUN and its checksums durable, before bits are taken back. Where there is no
// space for checksums the bits stay.
func (n *Node) checkpoint(id pair.LUNID) scsi.Result {
	e := n.md.tables.Load().units[id]
	if e == nil {
		return n.syncLUN(id) // a snapshot, or gone
	}
	err := e.file.Checkpoint()
	full := errors.Is(err, store.ErrNoSpace) && n.store.Failed() == nil
	if e.behind.Swap(full) != full {
		text := "the backing volume has no space for checksums: free space"
		if !full {
			text = "the backing volume has space for checksums again"
		}
		n.log.Warn(text, "lun", e.lun.UUID, "missing", full, "err", err)
	}
	if full {
		return scsi.OK
	}
	return classify(err, true)
}

// fetch is the partner's part of healing: its copy of some blocks, if they match their checksums.
func (n *Node) fetch(link uint64, msg *pair.Msg) {
	res := scsi.Unavailable
	var data []byte
	if f := n.file(msg.LUN); f != nil {
		data = make([]byte, msg.Len)
		if res = classify(f.ReadAt(data, msg.Off), false); res != scsi.OK && res != scsi.Damaged {
			data = nil // a source compares what a joiner has with checksums of its own
		}
	}
	n.do(func(m *pair.Machine, now int64) { m.Fetched(now, link, msg, data, res) })
}

// heal writes the partner's copy of some blocks.
func (n *Node) heal(o *pair.Op) scsi.Result {
	f := n.file(o.LUN)
	if f == nil {
		return scsi.Unavailable
	}
	heal := f.Heal
	if o.Verify {
		heal = f.HealVerified
	}
	res := classify(heal(o.Heal, o.HealAt), true)
	if res == scsi.OK {
		n.log.Warn("blocks that did not match their checksums were healed from the other node", "lun", o.LUN.String(), "offset", o.HealAt, "bytes", len(o.Heal))
	}
	return res
}

// accept takes blocks as they are that have lost only their checksums.
func (n *Node) accept(o *pair.Op) scsi.Result {
	f := n.file(o.LUN)
	if f == nil {
		return scsi.Unavailable
	}
	res := scsi.OK
	for _, r := range o.Bad {
		lost, err := f.Accept(r.Off, r.Len)
		switch {
		case err != nil && n.store.Failed() != nil:
			return scsi.WriteError
		case err != nil || len(lost) > 0:
			res = scsi.Damaged
		}
		for _, x := range lost {
			n.log.Error("blocks do not match their checksums and are lost; restore them from a backup, or write them again", "lun", o.LUN.String(), "offset", x.Off, "lba", x.Off/512, "bytes", x.Len)
		}
	}
	return res
}

// parts of data from off on, without the damaged ranges.
func parts(data []byte, off int64, bad []scsi.Range, fn func(data []byte, off int64) error) error {
	at := off
	for _, r := range append(bad[:len(bad):len(bad)], scsi.Range{Off: off + int64(len(data))}) {
		if r.Off < at || r.Off+r.Len > off+int64(len(data)) {
			return fmt.Errorf("damaged ranges of a copy at %d: %d+%d", off, r.Off, r.Len)
		}
		if r.Off > at {
			if err := fn(data[at-off:r.Off-off], at); err != nil {
				return err
			}
		}
		at = r.Off + r.Len
	}
	return nil
}

// applyCopy writes a range that the source of a resync, or of a scrub, has sent. What is lost there
// is lost here: it is no garbage that gets a checksum.
func applyCopy(f *store.File, msg *pair.Msg) error {
	bad, err := msg.DecodeRanges()
	if err != nil {
		return err
	}
	if err := parts(msg.Data, msg.Off, bad, f.WriteSparse); err != nil {
		return err
	}
	for _, r := range bad {
		if err := f.SetBad(r.Off, r.Len); err != nil {
			return err
		}
	}
	return nil
}

// adoptEvery is how often the node looks for LUNs and snapshots without all of their checksums: of
// a release before, or copies of those.
const adoptEvery = 5 * time.Second

// adoptLoop gives them theirs, one after the other.
func (n *Node) adoptLoop() {
	t := time.NewTicker(adoptEvery)
	defer t.Stop()
	for {
		tb := n.md.tables.Load()
		for _, e := range tb.units {
			n.adopt(e.lun.UUID, e.file)
		}
		for id, f := range tb.snapshots {
			n.adopt(id.String(), f)
		}
		select {
		case <-t.C:
		case <-n.run.ctx.Done():
			return
		}
	}
}

func (n *Node) adopt(id string, f *store.File) {
	done, total := f.Adopted()
	if done == total || n.run.ctx.Err() != nil {
		return
	}
	n.log.Info("computing checksums of existing data", "uuid", id, "done", done, "bytes", total)
	switch err := f.Adopt(n.run.ctx); {
	case err == nil:
		n.event("checksums", fmt.Sprintf("%s: all of its %d bytes have checksums now", id, total))
	case !errors.Is(err, context.Canceled):
		n.log.Warn("cannot compute checksums of existing data; trying again", "uuid", id, "err", err)
	}
}

// adopted sums up how far that is, in bytes, with what is in doubt.
func (n *Node) adopted() (done, total, doubted int64) {
	t := n.md.tables.Load()
	add := func(f *store.File) {
		d, of := f.Adopted()
		done, total, doubted = done+d, total+of, doubted+f.DoubtedBlocks()*pair.DefaultBlock
	}
	for _, e := range t.units {
		add(e.file)
	}
	for _, f := range t.snapshots {
		add(f)
	}
	return done, total, doubted
}
