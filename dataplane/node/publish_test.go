package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// After whatever entries, the tables are what they would be if they were made from the state.
func TestTablesFollowTheEntries(t *testing.T) {
	p := newTestPair(t).startBoth()
	rnd := rand.New(rand.NewPCG(1, 2))
	c := p.client(0)
	var luns, snaps []string
	mapped := map[string]bool{}
	host := func() string { return fmt.Sprintf("%s-%d", testHost, rnd.IntN(3)) }
	pick := func(list []string) string { return list[rnd.IntN(len(list))] }
	for range 150 {
		var err error
		switch what := rnd.IntN(9); {
		case what == 0 && len(luns) < 8, len(luns) == 0:
			id := uuid.NewString()
			if err = p.makeLUN(id, mib); err == nil {
				luns = append(luns, id)
			}
		case what <= 3:
			id := pick(luns)
			_, err = c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host(), ReadOnly: id < "8"})
			mapped[id] = true
		case what == 4:
			_, err = c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: pick(luns), HostIqn: host()})
		case what == 5:
			_, err = c.TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{pick(luns)}, ToNode: pick([]string{"a", "b"})})
		case what == 6:
			_, err = c.ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: pick(luns), SizeBytes: uint64(1+rnd.IntN(3)) * mib})
		case what == 7 && len(snaps) < 4:
			id := uuid.NewString()
			if err = p.snapshot(p.ctx, id, pick(luns)); err == nil {
				snaps = append(snaps, id)
			}
		case what == 7:
			_, err = c.DeleteSnapshot(p.ctx, &targetv1.DeleteSnapshotRequest{Uuid: snaps[0]})
			snaps = snaps[1:]
		default:
			p.deleteLUN(luns[0])
			luns = luns[1:]
		}
		if err != nil && status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
		for _, n := range p.nodes {
			n.md.mu.Lock()
			have := n.md.tables.Load()
			want, err := n.rebuilt(have)
			n.md.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			if what := differ(have, want); what != "" {
				t.Fatalf("node %v: %s", n.self, what)
			}
		}
	}
	if len(mapped) < 4 {
		t.Errorf("only %d LUNs were ever mapped", len(mapped))
	}
}

// differ says in what two tables do.
func differ(have, want *tables) string {
	switch {
	case !maps.Equal(have.units, want.units):
		return fmt.Sprintf("units %v, want %v", have.units, want.units)
	case !maps.Equal(have.snapshots, want.snapshots):
		return fmt.Sprintf("snapshots %v, want %v", have.snapshots, want.snapshots)
	case len(have.hosts) != len(want.hosts):
		return fmt.Sprintf("%d hosts, want %d", len(have.hosts), len(want.hosts))
	}
	for iqn, w := range want.hosts {
		h := have.hosts[iqn]
		if h == nil || !maps.Equal(h.luns, w.luns) || !slices.Equal(h.nums, w.nums) || h.chap != w.chap || h.profile != w.profile {
			return fmt.Sprintf("host %s sees %+v, want %+v", iqn, h, w)
		}
	}
	return ""
}

// A unit says what the state says that was published last: a node that installs the state of the
// other one may have had a change of its own that the other node was never told of.
func TestUnitFollowsAStateWithoutItsChange(t *testing.T) {
	p := newTestPair(t).startBoth()
	id := uuid.NewString()
	if err := p.makeLUN(id, mib); err != nil {
		t.Fatal(err)
	}
	n := p.nodes[0]
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	plain := n.md.state.LUNs[id]
	changed := *plain
	mode := scsi.DefaultMode(true)
	mode.Current = scsi.ModeValues{DescSense: true, Protect: true}
	changed.Mode, changed.PR, changed.Quarantine = &mode, &scsi.PRState{Generation: 7}, "it ended processes"
	have := n.md.tables.Load()
	for _, l := range []*meta.LUN{&changed, plain} {
		e, err := n.entry(have, l)
		if err != nil {
			t.Fatal(err)
		}
		e.both(func(u *scsi.Unit) {
			var generation uint32
			if l.PR != nil {
				generation = l.PR.Generation
			}
			if u.Mode() != l.ModeState() || u.PR().Generation != generation || u.Quarantined() != (l.Quarantine != "") {
				t.Errorf("the unit has %+v, PR generation %d, quarantined %v; want %+v, %d, %v", u.Mode(), u.PR().Generation, u.Quarantined(), l.ModeState(), generation, l.Quarantine != "")
			}
		})
		have = &tables{units: map[pair.LUNID]*unitEntry{e.id: e}}
	}
}
