package node

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// noise is content of which each block differs.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

// harm does to an image what disks, their controllers and people do.
var harm = map[string]func(f *os.File, other []byte) error{
	"a flipped bit": func(f *os.File, _ []byte) error {
		var b [1]byte
		if _, err := f.ReadAt(b[:], mib+77); err != nil {
			return err
		}
		b[0] ^= 4
		_, err := f.WriteAt(b[:], mib+77)
		return err
	},
	"zeroes": func(f *os.File, _ []byte) error { _, err := f.WriteAt(make([]byte, 64<<10), 2*mib); return err },
	"a hole": func(f *os.File, _ []byte) error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, mib, 512<<10)
	},
	"two blocks changed places": func(f *os.File, _ []byte) error {
		a, b := make([]byte, 4096), make([]byte, 4096)
		_, err1 := f.ReadAt(a, mib)
		_, err2 := f.ReadAt(b, 3*mib)
		_, err3 := f.WriteAt(b, mib)
		_, err4 := f.WriteAt(a, 3*mib)
		return errors.Join(err1, err2, err3, err4)
	},
	"a write of another LUN": func(f *os.File, other []byte) error { _, err := f.WriteAt(other[:8192], mib); return err },
	"the tail is cut off":    func(f *os.File, _ []byte) error { return f.Truncate(3 * mib) },
	"cut off and grown again": func(f *os.File, _ []byte) error {
		return errors.Join(f.Truncate(mib+512), f.Truncate(4*mib))
	},
}

func (p *testPair) harm(i int, id, what string) {
	p.t.Helper()
	f, err := os.OpenFile(p.image(i, id), os.O_RDWR, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := errors.Join(harm[what](f, noise(8192, 99)), f.Close()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testPair) holds(d *initiator.Device, want []byte) {
	p.t.Helper()
	got := make([]byte, len(want))
	for off := 0; off < len(want); off += 512 << 10 { // in pieces that are no whole blocks, too
		for _, cut := range [][2]int{{0, 512 << 10}, {512, 300<<10 + 512}} {
			if _, err := d.ReadAt(p.ctx, got[off+cut[0]:off+cut[1]], int64(off+cut[0])); err != nil {
				p.t.Fatalf("read at %d: %v", off+cut[0], err)
			}
		}
	}
	if !bytes.Equal(got, want) {
		p.t.Fatal("wrong bytes")
	}
}

// Whatever happens to an image while both nodes are well, hosts read what they wrote, at once, and
// the damage heals: at the owner by the reads themselves, at the partner by a scrub.
func TestDamageHeals(t *testing.T) {
	for what := range harm {
		for who, i := range map[string]int{"owner": 0, "partner": 1} {
			t.Run(what+" at the "+who, func(t *testing.T) {
				p := newTestPair(t).startBoth()
				id, m := p.lun(4*mib, "a")
				d := p.device(m)
				want := noise(4*mib, 1)
				if _, err := d.WriteAt(p.ctx, want, 0); err != nil {
					t.Fatal(err)
				}
				p.clean()
				p.harm(i, id, what)
				p.holds(d, want)
				if i == 1 {
					p.scrub(0, &targetv1.ScrubRequest{BytesPerSecond: 1 << 30})
					p.until("the scrub ends", func() bool { return !p.nodes[0].View().Scrub.Active && p.nodes[0].View().Scrub.Repaired > 0 })
				}
				p.alike(id)
				p.holds(d, want)
				if v := p.nodes[0].View(); v.Phase != pair.Paired || v.Record.Epoch != 1 {
					t.Errorf("%+v", v)
				}
				_, metrics := p.get(i, "/metrics")
				if i == 0 && strings.Contains(metrics, `gemel_checksum_blocks_total{event="healed"} 0`) {
					t.Error("nothing is counted as healed")
				}
			})
		}
	}
}

func lostAt(err error) (uint64, bool) {
	var e *initiator.SCSIError
	ok := errors.As(err, &e) && errors.Is(err, initiator.ErrMedium) && e.InfoValid
	if !ok {
		return 0, false
	}
	return e.Info, true
}

// A lone node has no peer to ask: the block is a MEDIUM ERROR with its address, never zeroes, and
// no other one is. It is copied as lost to the node that comes back, and good again once it is
// written.
func TestDamageOfALoneNode(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	want := noise(8*mib, 2)
	if _, err := d.WriteAt(p.ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	copy(want[mib:2*mib], noise(mib, 3)) // of which the other node knows nothing
	if _, err := d.WriteAt(p.ctx, want[mib:2*mib], mib); err != nil {
		t.Fatal(err)
	}
	p.harm(0, id, "a flipped bit")
	lost := func(where string, off int64, n int, lba uint64) {
		t.Helper()
		_, err := d.ReadAt(p.ctx, make([]byte, n), off)
		if at, ok := lostAt(err); !ok || at != lba {
			t.Fatalf("%s: %v at %d, want a MEDIUM ERROR at %d", where, err, at, lba)
		}
	}
	lost("alone", mib, 4096, mib/512)
	lost("alone, within more", mib-64<<10, 128<<10, mib/512)
	lost("alone, a part of it", mib+1024, 512, mib/512+2)
	p.holds(d, want[:mib])
	p.start(1)
	p.inSync()
	lost("both are members", mib, 4096, mib/512)
	if _, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil {
		t.Fatal(err)
	}
	lost("at the node that was copied to", mib, 4096, mib/512)
	if _, err := d.WriteAt(p.ctx, want[mib:mib+512], mib); err != nil { // the rest of the block is lost still
		t.Fatal(err)
	}
	lost("written in part", mib, 4096, mib/512)
	if _, err := d.WriteAt(p.ctx, want[mib:mib+4096], mib); err != nil {
		t.Fatal(err)
	}
	p.holds(d, want)
	p.alike(id)
}

// The node that comes back has what the lone one has lost: only another block of its region was
// written meanwhile.
func TestLoneNodeIsHealedByTheJoiner(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	want := noise(8*mib, 2)
	if _, err := d.WriteAt(p.ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	copy(want[2*mib:], noise(4096, 3))
	if _, err := d.WriteAt(p.ctx, want[2*mib:2*mib+4096], 2*mib); err != nil { // sets the bit of the region
		t.Fatal(err)
	}
	p.harm(0, id, "a flipped bit")
	p.start(1)
	p.inSync()
	p.holds(d, want)
	p.alike(id)
	p.nodes[0].do(func(m *pair.Machine, _ int64) {
		if h := m.Stats.HealedFromJoiner; h != 1 {
			t.Errorf("%d blocks were healed from the joiner", h)
		}
	})
}

// An image from before checksums has no checksums: it gets them while hosts are at work, and then
// damage heals.
func TestImagesOfBeforeGetChecksums(t *testing.T) {
	p := newTestPair(t)
	p.cfg[0].NoChecksums, p.cfg[1].NoChecksums = true, true
	p.startBoth()
	id, m := p.lun(4*mib, "a")
	d := p.device(m)
	want := noise(4*mib, 3)
	if _, err := d.WriteAt(p.ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	p.clean()
	for _, i := range []int{1, 0} { // one after the other, as an upgrade does
		p.end(i)
		p.cfg[i].NoChecksums = false
		p.start(i)
		p.inSync()
	}
	p.until("all has checksums", func() bool {
		for _, n := range p.nodes {
			if done, total, _ := n.adopted(); done != total || total == 0 {
				return false
			}
		}
		return true
	})
	k, err := parseID(id)
	if err != nil {
		t.Fatal(err)
	}
	n := p.nodes[0]
	n.mu.Lock()
	owner, _ := n.m.Owner(k)
	n.mu.Unlock()
	p.harm(int(owner), id, "zeroes")
	p.holds(d, want)
	p.alike(id)
}

// Without space for checksums nothing stops and nothing is believed that is not durable: bits stay
// until there is some.
func TestNoSpaceForChecksums(t *testing.T) {
	p := newTestPair(t)
	var full atomic.Bool
	p.cfg[0].Faults = func(op, _ string, _, _ int64) error {
		if full.Load() && op == store.FaultSums {
			return syscall.ENOSPC
		}
		return nil
	}
	p.startBoth()
	_, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	full.Store(true)
	p.write(d, 4*mib, 2)
	before := p.checkpoints(0)
	p.until("a checkpoint is over", func() bool { return p.checkpoints(0) > before })
	e := p.nodes[0].md.tables.Load()
	for _, u := range e.units {
		if !u.behind.Load() || pair.Regions(u.bits.Dirty()).Empty() {
			t.Error("the bits are taken back, and the checksums are not durable")
		}
	}
	full.Store(false)
	p.write(d, 0, 3)
	p.clean()
	for _, u := range e.units {
		p.until("the bits are taken back", func() bool { return pair.Regions(u.bits.Dirty()).Empty() })
	}
	if v := p.nodes[0].View(); v.Phase != pair.Paired || v.Record.Epoch != 1 {
		t.Errorf("%+v", v)
	}
}

// What is sent to be copied with ranges that make no sense is refused, and nothing is written
// beyond it.
func TestDamagedRangesAreJudged(t *testing.T) {
	for _, bad := range [][]scsi.Range{{{Off: 0, Len: 4096}}, {{Off: 8192, Len: 8192}}, {{Off: 12288, Len: 0}, {Off: 8192, Len: 4096}}} {
		wrote := 0
		err := parts(make([]byte, 8192), 4096, bad, func(b []byte, _ int64) error { wrote += len(b); return nil })
		if err == nil || wrote > 8192 {
			t.Errorf("%v: %v, %d bytes", bad, err, wrote)
		}
	}
}
