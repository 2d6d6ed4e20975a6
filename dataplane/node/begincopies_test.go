package node

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/initiator"
)

// emptyCopy is a snapshot that was prepared, and has not begun.
func (p *testPair) emptyCopy(lun string) *meta.Marked {
	p.t.Helper()
	id := uuid.NewString()
	if _, err := p.nodes[0].propose(p.ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: meta.Snapshot{UUID: id, Name: id, Source: lun, Created: meta.Now()}, Later: true}}); err != nil {
		p.t.Fatal(err)
	}
	c, _ := p.nodes[0].copyByID(id)
	x, err := p.nodes[0].toMark(c)
	if err != nil {
		p.t.Fatal(err)
	}
	return x
}

func (p *testPair) filled() (lun string, d *initiator.Device) {
	p.t.Helper()
	p.startBoth()
	lun, m := p.lun(4*mib, "a")
	d = p.device(m)
	p.write(d, 0, 1)
	return lun, d
}

// What the log marks and one node has not begun is given up: that node must not begin when it
// applies the entry, since the LUN has changed by then.
func TestMarkOfWhatANodeHasNotBegun(t *testing.T) {
	for missing := range 2 {
		p := newTestPair(t)
		lun, d := p.filled()
		x := p.emptyCopy(lun)
		if err := p.nodes[1-missing].beginHere(beginCopies{Copies: []*meta.Marked{x}}); err != nil {
			t.Fatal(err)
		}
		p.write(d, 0, 2)
		if _, err := p.nodes[0].propose(p.ctx, &meta.Entry{Mark: &meta.Object{UUID: x.UUID, Born: x.Born}}); err != nil {
			t.Fatal(err)
		}
		p.until("it is given up", func() bool { return p.stage(x.UUID) == "" })
		p.until("and the reason names the node", func() bool {
			return strings.Contains(p.nodes[0].whyGone(x.Copy).Error(), "given up: node "+p.nodes[missing].self.String())
		})
	}
}

// What has begun under another birth counts for nothing.
func TestMarkOfAnotherBirth(t *testing.T) {
	p := newTestPair(t)
	lun, d := p.filled()
	x := p.emptyCopy(lun)
	other := *x
	other.Born++
	for _, n := range p.nodes {
		if err := n.beginHere(beginCopies{Copies: []*meta.Marked{&other}}); err != nil {
			t.Fatal(err)
		}
		if err := n.beginHere(beginCopies{Copies: []*meta.Marked{x}}); !errors.Is(err, control.ErrUnavailable) {
			t.Errorf("two begin at once: %v", err)
		}
	}
	p.write(d, 0, 2)
	if _, err := p.nodes[0].propose(p.ctx, &meta.Entry{Mark: &meta.Object{UUID: x.UUID, Born: x.Born}}); err != nil {
		t.Fatal(err)
	}
	p.until("it is given up", func() bool { return p.stage(x.UUID) == "" })
}

// Changes continue when both nodes have begun, before the log has marked anything, and what was
// begun is what the LUN was.
func TestCopyIsOfWhenItBegan(t *testing.T) {
	p := newTestPair(t)
	lun, d := p.filled()
	x := p.emptyCopy(lun)
	n := p.nodes[0]
	if err := n.beginBoth(p.ctx, beginCopies{Copies: []*meta.Marked{x}}, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	p.write(d, 0, 2)
	p.write(d, 2*mib, 3)
	if _, err := n.propose(p.ctx, &meta.Entry{Mark: &meta.Object{UUID: x.UUID, Born: x.Born}}); err != nil {
		t.Fatal(err)
	}
	p.until("it is complete", func() bool { return p.stage(x.UUID) == meta.Ready })
	p.snapshotsHold(x.UUID, append(bytes.Repeat([]byte{1}, mib), make([]byte, 3*mib)...))
}

// A snapshot is not taken where a node cannot begin, and another one is later, also when what has
// begun in vain is not removed.
func TestBegunInVain(t *testing.T) {
	p := newTestPair(t)
	lun, _ := p.filled()
	x := p.emptyCopy(lun)
	b := p.nodes[1]
	if err := b.beginHere(beginCopies{Copies: []*meta.Marked{x}}); err != nil {
		t.Fatal(err)
	}
	p.refuses(p.snapshot(p.ctx, uuid.NewString(), lun), codes.Unavailable, "the other node")
	b.copies.mu.Lock()
	b.copies.all[x.UUID].began = time.Now().Add(-2 * beginKept)
	b.copies.mu.Unlock()
	snap := uuid.NewString()
	if err := p.snapshot(p.ctx, snap, lun); err != nil {
		t.Fatal(err)
	}
	p.snapshotsHold(snap, append(bytes.Repeat([]byte{1}, mib), make([]byte, 3*mib)...))
}
