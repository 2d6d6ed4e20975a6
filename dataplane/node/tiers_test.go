package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// tiered gives both nodes a pool with a slow and a fast member.
func (p *testPair) tiered() *testPair {
	p.pooled("slow", "fast")
	for i := range p.cfg {
		p.cfg[i].Tiers, p.cfg[i].TierRound = []string{"pool/fast=fast"}, Duration(300*time.Millisecond)
		p.cfg[i].Faults = func(op, path string, _, _ int64) error {
			if op == store.FaultRead && strings.Contains(path, "slow/") {
				time.Sleep(3 * time.Millisecond)
			}
			return nil
		}
	}
	return p
}

// onFast are the extents of a LUN that lie on the fast member of a node.
func (p *testPair) onFast(i int, id string) (list []int64) {
	e := p.nodes[i].entryOf(id)
	if e == nil {
		return nil
	}
	for x := range e.file.ExtentCount() {
		if e.tier.of.fast[e.file.Where(x)] {
			list = append(list, x)
		}
	}
	return list
}

// readAtRandom reads blocks of some extents until the returned function is called.
func (p *testPair) readAtRandom(d *initiator.Device, extents ...int64) (stop func()) {
	ctx, cancel := context.WithCancel(p.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		b := make([]byte, 4096)
		for ctx.Err() == nil {
			at := extents[r.IntN(len(extents))]*4*mib + r.Int64N(1024)*4096
			if _, err := d.ReadAt(ctx, b, at); err != nil && ctx.Err() == nil {
				p.t.Error(err)
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// What hosts read much moves to the fast tier by itself, on both nodes, and other data leaves it
// for that. Pins are followed while hosts are at work.
func TestTiersArrangeThemselves(t *testing.T) {
	p := newTestPair(t).tiered().startBoth()
	id, m := p.lunIn(0, "pool")
	d := p.device(m)
	for at := int64(0); at < 16*mib; at += mib {
		p.write(d, at, byte(1+at/mib))
	}
	if got := p.onFast(0, id); len(got) > 0 {
		t.Fatalf("new data lies on the fast tier: %v", got)
	}
	c := p.client(0)
	stop := p.readAtRandom(d, 1, 3)
	for i := range p.nodes {
		p.until("what is read lies on the fast tier", func() bool { return fmt.Sprint(p.onFast(i, id)) == "[1 3]" })
	}
	stop()
	p.alikeInPool(id)
	r, err := c.GetTiering(p.ctx, &targetv1.GetTieringRequest{LunUuid: id})
	if err != nil {
		t.Fatal(err)
	}
	v := r.Volumes[0]
	if r.Mode != "auto" || v.Volume != "pool" || v.Fast.Extents != 2 || v.Capacity.Extents != 2 || v.Capacity.Reads == 0 || v.Capacity.Writes == 0 || v.Capacity.ReadUs < 3000 || v.Fast.ReadUs >= 3000 {
		t.Errorf("%v", r)
	}
	if len(r.Moves) != 2 || r.Moves[0].Reason != "heat" || r.Moves[0].To != "fast" || r.Moves[0].Rate <= 0 || r.Moves[0].Lun != id {
		t.Errorf("%v", r.Moves)
	}
	if h := r.Heat; len(h.Parts) != 4 || h.Parts[1].Rate <= 0 || h.Parts[1].Fast != 1 || h.Parts[0].Fast != 0 || h.Pin != "none" {
		t.Errorf("%v", h)
	}
	if _, text := p.get(0, "/metrics"); !strings.Contains(text, `gemel_tier_moves_total{reason="heat",tier="fast",volume="pool"} 2`) ||
		!strings.Contains(text, `gemel_tier_extents{tier="fast",volume="pool"} 2`) || !strings.Contains(text, `gemel_tier_read_seconds_total{tier="capacity",volume="pool"} `) {
		t.Error("the tiers have no metrics")
	}

	pin := func(tier string) error {
		_, err := c.ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, PinnedTier: tier})
		return err
	}
	p.refuses(pin("slow"), codes.InvalidArgument, "pinned_tier")
	stop = p.readAtRandom(d, 0)
	for tier, want := range map[string]string{"capacity": "[]", "fast": "[0 1 2 3]"} {
		if err := pin(tier); err != nil {
			t.Fatal(err)
		}
		for i := range p.nodes {
			p.until("the LUN lies on the tier that it is pinned to", func() bool { return fmt.Sprint(p.onFast(i, id)) == want })
		}
	}
	stop()
	if l, err := c.GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id}); err != nil || l.PinnedTier != "fast" && l.PinnedTier != "capacity" {
		t.Errorf("%v, %v", l, err)
	}
	if err := pin("none"); err != nil {
		t.Fatal(err)
	}
	p.alikeInPool(id)

	// Pins that cannot be.
	other, _ := p.lun(4*mib, "a")
	_, err = c.ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: other, PinnedTier: "fast"})
	p.refuses(err, codes.InvalidArgument, "has no fast tier")
	_, err = c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "pinned", SizeBytes: 4 * mib, PinnedTier: "fast"})
	p.refuses(err, codes.InvalidArgument, "has no fast tier")
	_, err = c.GetTiering(p.ctx, &targetv1.GetTieringRequest{LunUuid: other})
	p.refuses(err, codes.InvalidArgument, "has no fast tier")
	_, err = c.GetTiering(p.ctx, &targetv1.GetTieringRequest{LunUuid: uuid.NewString()})
	p.refuses(err, codes.NotFound, "LUN")
}

// A pin needs tiers at both nodes, since hosts may use either.
func TestPinNeedsTiersAtBothNodes(t *testing.T) {
	p := newTestPair(t).tiered()
	p.cfg[1].Tiers = nil
	p.startBoth()
	id, _ := p.lunIn(0, "pool")
	_, err := p.client(0).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, PinnedTier: "fast"})
	p.refuses(err, codes.InvalidArgument, "node b has no fast tier")
	_, err = p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "pinned", SizeBytes: 4 * mib, Volume: "pool", PinnedTier: "capacity"})
	p.refuses(err, codes.InvalidArgument, "node b has no fast tier")
}

// Observe says what would move, once for each, and moves nothing.
func TestTieringIsObserved(t *testing.T) {
	p := newTestPair(t).tiered()
	p.cfg[0].Tiering, p.cfg[1].Tiering = "observe", "off"
	p.startBoth()
	id, m := p.lunIn(0, "pool")
	d := p.device(m)
	for at := int64(0); at < 16*mib; at += mib {
		p.write(d, at, byte(1+at/mib))
	}
	stop := p.readAtRandom(d, 2)
	defer stop()
	list := func() []*targetv1.TierMove {
		r, err := p.client(0).GetTiering(p.ctx, &targetv1.GetTieringRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Moves
	}
	p.until("a move is named", func() bool { return len(list()) > 0 })
	before := p.nodes[0].entryOf(id).counts.Disk()
	p.until("more was read", func() bool { return p.nodes[0].entryOf(id).counts.Disk() > before+time.Second })
	if moves := list(); len(moves) != 1 || !moves[0].Observed || moves[0].Extent != 2 || moves[0].To != "fast" {
		t.Errorf("%v", moves)
	}
	if got := p.onFast(0, id); len(got) > 0 {
		t.Errorf("extents %v have moved", got)
	}
	if r, err := p.client(1).GetTiering(p.ctx, &targetv1.GetTieringRequest{}); err != nil || r.Mode != "off" || r.Volumes[0].Reason == "" {
		t.Errorf("off: %v, %v", r, err)
	}
}

// Members of one tier that differ much are named, and equally fast tiers exchange nothing.
func TestMembersThatDifferAreNamed(t *testing.T) {
	p := newTestPair(t).tiered()
	for i := range p.cfg {
		p.cfg[i].Tiers = nil
	}
	p.startBoth()
	p.until("the slow member is named", func() bool {
		list := p.nodes[0].Status(p.ctx).Places
		return len(list) == 2 && strings.Contains(list[0].Reason, "at fast: members of one tier should be alike") && list[0].ReadUs >= 3000 && list[1].Reason == ""
	})
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.cfg[0].Faults, p.cfg[0].Tiers = nil, []string{"pool/fast=fast"}
	p.start(0)
	p.inSync()
	p.until("the tiers are measured", func() bool {
		r, err := p.nodes[0].GetTiering("")
		return err == nil && strings.Contains(r.Volumes[0].Reason, "nothing is gained")
	})
}

func TestTierFlags(t *testing.T) {
	for _, c := range []struct {
		tiers   []string
		tiering string
		want    string
	}{
		{[]string{"pool/fast=fast"}, "", ""},
		{[]string{"pool/fast=fast", "pool/slow=capacity"}, "observe", ""},
		{[]string{"pool=fast"}, "", "must be VOLUME/MEMBER=TIER"},
		{[]string{"pool/fast"}, "", "must be VOLUME/MEMBER=TIER"},
		{[]string{"pool/fast=hot"}, "", `the tier must be "fast" or "capacity"`},
		{[]string{"pool/fast=fast", "pool/slow=fast"}, "", "needs a member beside it"},
		{[]string{"pool/fast=fast", "pool/fast=capacity"}, "", "twice"},
		{[]string{"pond/fast=capacity"}, "", "no backing volume of that name"},
		{nil, "on", `"on" must be "auto", "observe" or "off"`},
	} {
		p := newTestPair(t).tiered()
		p.cfg[0].Tiers, p.cfg[0].Tiering = c.tiers, c.tiering
		err := p.cfg[0].Validate()
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v, %q: %v, want %q", c.tiers, c.tiering, err, c.want)
		}
	}
}

// Hints are about LUNs that are there, and no more than so many of each.
func TestHintsAreBounded(t *testing.T) {
	p := newTestPair(t).tiered()
	p.cfg[1].TierRound = Duration(time.Hour)
	p.startBoth()
	id, _ := p.lunIn(0, "pool")
	n := p.nodes[1]
	p.until("the other node has the LUN", func() bool { return n.entryOf(id) != nil })
	for range hintsMost {
		n.takeHints(tierHints{[]tierHint{{id, 1, 5}, {id, -1, 5}, {id, 1 << 40, 5}, {uuid.NewString(), 0, 1}, {"x", 0, 1}}})
	}
	n.takeHints(tierHints{[]tierHint{{id, 1, 5}}})
	x := n.tiers.of["pool"]
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.hints) != 1 || len(x.hints[id]) != hintsMost {
		t.Errorf("hints of %d LUNs, %d of one", len(x.hints), len(x.hints[id]))
	}
}
