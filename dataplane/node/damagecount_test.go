package node

import (
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func blocksAt(off, n int64) scsi.Range { return scsi.Range{Off: off, Len: n} }

// What is damaged within a few seconds is one finding for each LUN, reported when it cannot change
// any more, with counters that are those of the findings.
func TestDamageIsPutTogether(t *testing.T) {
	var d damageTally
	x, y := pair.LUNID(uuid.New()), pair.LUNID(uuid.New())
	now := time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)
	for i := range int64(10_000) {
		d.add(&pair.Damage{LUN: x, Runs: []scsi.Range{blocksAt(1<<20+i*4096, 4096)}}, now.Add(time.Duration(i)*100*time.Microsecond))
	}
	d.add(&pair.Damage{LUN: y, Lost: true, Runs: []scsi.Range{blocksAt(8192, 8192), blocksAt(64<<10, 4096)}}, now.Add(2*time.Second))
	first := d.proto(now.Add(3 * time.Second))
	if len(first.Findings) != 0 || first.HealedBlocks != 0 || first.LostBlocks != 0 || first.Process == "" {
		t.Fatalf("told before they are over: %v", first)
	}
	p := d.proto(now.Add(damageTime))
	if len(p.Findings) != 1 || p.HealedBlocks != 10_000 || p.LostBlocks != 0 || p.Process != first.Process {
		t.Fatalf("%v", p)
	}
	if f := p.Findings[0]; f.Number != 1 || f.Uuid != x.String() || f.Lost || f.Blocks != 10_000 || f.Offset != 1<<20 || f.LastOffset != 1<<20+9_999*4096 || !f.Time.AsTime().Equal(now.Add(999_900*time.Microsecond)) {
		t.Errorf("%v", f)
	}
	// What comes later is another finding.
	d.add(&pair.Damage{LUN: x, Runs: []scsi.Range{blocksAt(0, 4096)}}, now.Add(6*time.Second))
	p = d.proto(now.Add(time.Minute))
	if len(p.Findings) != 3 || p.HealedBlocks != 10_001 || p.LostBlocks != 3 {
		t.Fatalf("%v", p)
	}
	if f := p.Findings[1]; f.Number != 2 || f.Uuid != y.String() || !f.Lost || f.Blocks != 3 || f.Offset != 8192 || f.LastOffset != 64<<10 {
		t.Errorf("%v", f)
	}
	if f := p.Findings[2]; f.Number != 3 || f.Uuid != x.String() || f.Blocks != 1 || f.Offset != 0 {
		t.Errorf("%v", f)
	}
}

// A lost block that a host asks for again and again is reported once an hour, and a disk that loses
// everything does not fill the memory.
func TestLostBlocksAreToldOnce(t *testing.T) {
	var d damageTally
	x := pair.LUNID(uuid.New())
	now := time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)
	ask := func(at time.Duration, off int64) *targetv1.Checksums {
		d.add(&pair.Damage{LUN: x, Lost: true, Runs: []scsi.Range{blocksAt(off, 4096)}}, now.Add(at))
		return d.proto(now.Add(at + damageTime))
	}
	ask(0, 4096)
	for i := range 100 {
		if p := ask(time.Duration(i)*30*time.Second, 4096); p.LostBlocks != 1 || len(p.Findings) != 1 {
			t.Fatalf("%d: %v", i, p)
		}
	}
	if p := ask(31*time.Minute, 8192); p.LostBlocks != 2 {
		t.Errorf("another block: %v", p)
	}
	if p := ask(lostAgain, 4096); p.LostBlocks != 3 || len(p.Findings) != 3 {
		t.Errorf("after an hour: %v", p)
	}
	for i := range int64(300) {
		d.add(&pair.Damage{LUN: x, Lost: true, Runs: []scsi.Range{blocksAt(1<<30+i<<20, 1<<20)}}, now.Add(lostAgain+time.Duration(i+1)*damageTime))
	}
	p := d.proto(now.Add(3 * lostAgain))
	if len(d.known) > maxLostKnown || p.LostBlocks != 3+300*256 || len(p.Findings) != maxDamage || p.Findings[maxDamage-1].Number != 303 || p.Findings[0].Number != 303-maxDamage+1 {
		t.Errorf("%d known, %d lost, %d findings", len(d.known), p.LostBlocks, len(p.Findings))
	}
}

// What hosts' reads heal, and what is lost, is in the status of the node that met it; of the next
// process nothing is counted yet.
func TestDamageIsTold(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(4*mib, "a")
	d := p.device(m)
	want := noise(4*mib, 1)
	if _, err := d.WriteAt(p.ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	p.clean()
	if c := p.status(0).Checksums; c == nil || c.TotalBytes != 4*mib || c.CoveredBytes != 4*mib || c.HealedBlocks != 0 || len(c.Findings) != 0 {
		t.Fatalf("%v", c)
	}
	p.harm(0, id, "zeroes") // 16 blocks at 2 MiB
	p.holds(d, want)
	var c *targetv1.Checksums
	p.until("the healed blocks are told", func() bool { c = p.status(0).Checksums; return len(c.Findings) > 0 })
	if f := c.Findings[0]; c.HealedBlocks != 16 || c.LostBlocks != 0 || len(c.Findings) != 1 || f.Number != 1 || f.Uuid != id || f.Lost || f.Blocks != 16 || f.Offset != 2*mib || f.LastOffset != 2*mib+15*4096 || f.Time == nil {
		t.Fatalf("%v", c)
	}
	process := c.Process
	for i := range p.nodes { // of the same block at both nodes
		p.harm(i, id, "a flipped bit")
	}
	for range 3 {
		if _, err := d.ReadAt(p.ctx, make([]byte, 64<<10), mib-32<<10); err == nil {
			t.Fatal("read")
		}
	}
	p.until("the lost block is told", func() bool { c = p.status(0).Checksums; return c.LostBlocks > 0 })
	if f := c.Findings[len(c.Findings)-1]; c.LostBlocks != 1 || f.Uuid != id || !f.Lost || f.Blocks != 1 || f.Offset != mib || c.Process != process || c.HealedBlocks != 16 {
		t.Fatalf("%v", c)
	}
	p.end(0)
	p.start(0)
	p.inSync()
	if c = p.status(0).Checksums; c.Process == process || len(c.Findings) != 0 || c.HealedBlocks != 0 || c.LostBlocks != 0 {
		t.Errorf("%v", c)
	}
	p.end(1)
	p.cfg[1].NoChecksums = true
	p.start(1)
	p.inSync()
	if c := p.status(1).Checksums; c != nil {
		t.Errorf("a node without checksums says %v", c)
	}
}
