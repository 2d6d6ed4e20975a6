package pair

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// A host groups paths by the NAA designator alone: both nodes report the same designator for a LUN,
// no matter which node owns it, also after a restart, and every LUN has a different one, also a LUN
// under a name and a number that were used before.
func TestHazard3Designator(t *testing.T) {
	p, ctx := start(t)
	seen := map[string]bool{}
	fresh := func(naa string) string {
		t.Helper()
		if seen[naa] {
			t.Errorf("NAA %s was another LUN's", naa)
		}
		seen[naa] = true
		return naa
	}
	create := func(i int, owner string) *targetv1.LUN {
		t.Helper()
		l, err := p.Client(i).CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "the one name", SizeBytes: 1 << 20, PreferredNode: owner})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	admit := func(l *targetv1.LUN, name string) *targetv1.Mapping {
		t.Helper()
		m, err := p.Client(1).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: l.Uuid, HostIqn: name})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	remove := func(l *targetv1.LUN) {
		t.Helper()
		if _, err := p.Client(0).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: l.Uuid}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Client(0).DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: l.Uuid}); err != nil {
			t.Fatal(err)
		}
	}

	first := create(0, "a")
	m := admit(first, host)
	naa := fresh(naaOf(t, ctx, p, m))
	if naa != first.Wwid || naa != m.Wwid {
		t.Errorf("NAA %s; control API and publish say %s and %s", naa, first.Wwid, m.Wwid)
	}
	if _, err := p.Client(0).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "b"}); err != nil {
		t.Fatal(err)
	}
	if again := naaOf(t, ctx, p, m); again != naa {
		t.Errorf("another NAA with another owner: %s", again)
	}
	if err := p.Kill(1); err != nil {
		t.Fatal(err)
	}
	if err := p.StartNode(1); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	if again := naaOf(t, ctx, p, m); again != naa {
		t.Errorf("another NAA after a restart: %s", again)
	}

	remove(first)
	second := create(1, "b")
	m2 := admit(second, host)
	fresh(naaOf(t, ctx, p, m2)) // of the same name and host
	m3 := admit(second, host2)  // whose first number it is, as it was the first one's
	if m3.Lun != m.Lun {
		t.Errorf("number %d: this shows nothing of a number that is used again", m3.Lun)
	}
	if naaOf(t, ctx, p, m3) != m2.Wwid {
		t.Error("two hosts see one LUN as two")
	}
	copied, err := p.Client(0).CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "a copy", SizeBytes: 1 << 20, SourceLunUuid: second.Uuid})
	if err != nil {
		t.Fatal(err)
	}
	fresh(naaOf(t, ctx, p, admit(copied, host)))
}

// naaOf asks both nodes for the LUN's NAA designator (VPD page 83h, SPC-4 §7.8.6), in hexadecimal.
func naaOf(t *testing.T, ctx context.Context, p *harness.Pair, m *targetv1.Mapping) string {
	t.Helper()
	var found [2]string
	for i, portal := range p.Portals() {
		s, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn, Portal: portal})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		page := make([]byte, 512)
		r, err := s.Execute(ctx, uint16(m.Lun), []byte{0x12, 1, 0x83, byte(len(page) >> 8), byte(len(page)), 0}, nil, page)
		if err != nil || r.Status != initiator.StatusGood {
			t.Fatalf("INQUIRY at node %s: %v, %v", harness.Names[i], r.Err(0), err)
		}
		page = page[4 : 4+binary.BigEndian.Uint16(page[2:])]
		for len(page) > 0 {
			d := page[4 : 4+page[3]]
			if kind, of := page[1]&0x0f, page[1]>>4&3; kind == 3 && of == 0 { // NAA, of the logical unit
				if found[i] != "" {
					t.Errorf("node %s reports two: %s and %x", harness.Names[i], found[i], d)
				}
				found[i] = hex.EncodeToString(d)
			}
			page = page[4+len(d):]
		}
	}
	if found[0] != found[1] || len(found[0]) != 32 || found[0][0] != '6' {
		t.Fatalf("node a reports NAA %q, node b %q", found[0], found[1])
	}
	return found[0]
}
