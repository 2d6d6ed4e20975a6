package node

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// A LUN follows a consumer that moves from the worker of one node to that of the other, while the
// consumer works, without an error and without a second move.
func TestLUNFollowsItsConsumer(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.until("a chair has seen the LUN at home", func() bool {
		p.write(d, 0, 1)
		return p.status(0).Ownership.Decides || p.status(1).Ownership.Decides
	})
	if err := d.Close(p.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: m.HostIqn}); err != nil {
		t.Fatal(err)
	}
	const other = testHost + ":second"
	near := &targetv1.Near{Node: "b", By: "worker"}
	m, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: other, Near: near})
	if err != nil || m.Near.GetNode() != "b" || m.Near.GetBy() != "worker" {
		t.Fatalf("%v %v", m, err)
	}
	l, err := p.client(1).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil || l.PreferredNode != "b" || len(l.Mappings) != 1 || l.Mappings[0].Near.GetNode() != "b" {
		t.Fatalf("%v %v", l, err)
	}
	d = p.device(m)
	p.until("it is near its consumer", func() bool { p.write(d, 0, 2); return p.owner(id) == "b" })
	p.movedFor(id, balance.ReasonNearness)
	for range 5 {
		p.write(d, 4096, 3)
	}
	if o := p.owner(id); o != "b" {
		t.Errorf("owner %s", o)
	}
}

func TestMapHostNearNonsense(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	id, _ := p.lun(8*mib, "a")
	for _, near := range []*targetv1.Near{{}, {Node: "c", By: "zone"}, {Node: "a", By: "rack"}, {Node: "a"}} {
		_, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost + ":x", Near: near})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", near, err)
		}
	}
}

// A node of a release before is not told where a host is, and maps it all the same.
func TestMapHostNearInAMixedPair(t *testing.T) {
	t.Parallel()
	p := newTestPair(t)
	p.cfg[0].earlier = true
	p.startBoth()
	for i := range p.nodes {
		id, m := p.lun(8*mib, "a")
		if _, err := p.client(i).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: m.HostIqn}); err != nil {
			t.Fatal(err)
		}
		m, err := p.client(i).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost, Near: &targetv1.Near{Node: "b", By: "zone"}})
		if err != nil || i == 1 && m.Near != nil {
			t.Fatalf("node %d: %v %v", i, m, err)
		}
		p.write(p.device(m), 0, 1)
	}
}

// The chair sees where the only host of a LUN is, and takes a part of its work to be saved there.
func TestChairSeesTheConsumer(t *testing.T) {
	x := newLooking()
	if l := x.look(); l.Near != balance.None || l.NearGain != 0 {
		t.Fatalf("%+v", l)
	}
	x.reports[0].Work.CPUs, x.reports[0].Work.CPU, x.reports[0].Work.Full = 1, 0.4, 0.4
	x.lun.Maps[h1] = meta.Map{Near: meta.Near{Node: "b", By: meta.NearZone}}
	if l := x.look(); l.Near != balance.B || l.NearBy != meta.NearZone {
		t.Fatalf("%+v", l)
	}
	x.lun.Maps["iqn.h2"] = meta.Map{Near: meta.Near{Node: "b", By: meta.NearZone}}
	if l := x.look(); l.Near != balance.None {
		t.Fatalf("%+v", l)
	}
}
