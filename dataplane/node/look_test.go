package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// looking plays looks of a chair at one LUN, a second apart.
type looking struct {
	k       looker
	now     int64
	lun     *meta.LUN
	reports [2]useReport
}

const h1 = "iqn.h1"

func newLooking() *looking {
	x := &looking{now: int64(time.Hour), lun: &meta.LUN{UUID: "l", Stage: meta.Ready, Owner: "a", Preferred: "b", Seq: 7, Maps: map[string]meta.Map{h1: {}}}}
	x.k.since = x.now
	for i := range x.reports {
		x.reports[i] = useReport{Process: uint64(i + 1), Hosts: map[string]hostUse{h1: {}}, LUNs: map[string]map[string]lunUse{"l": {h1: {}}}}
	}
	return x
}

func (x *looking) reads(node int, bytes uint64) {
	u := x.reports[node].LUNs["l"][h1]
	x.reports[node].LUNs["l"][h1] = lunUse{Bytes: u.Bytes + bytes, Ops: u.Ops + 1}
}

func (x *looking) look() *balance.LUN {
	x.now += int64(time.Second)
	v, seqs := x.k.look(x.now, []*meta.LUN{x.lun, {UUID: "made", Stage: meta.Preparing}}, nil, x.reports)
	if len(v.LUNs) != 1 || seqs["l"] != x.lun.Seq {
		panic("the view has another set of LUNs")
	}
	return &v.LUNs[0]
}

// A host can use a node from the moment on at which it has shown it, and no session alone is that.
func TestChairSeesSinceWhenHostUsesNode(t *testing.T) {
	x := newLooking()
	if h := x.look().Hosts[0]; !h.Session[0] || h.CanUse[0] || h.CanUse[1] {
		t.Fatalf("%+v", h)
	}
	x.reports[1].Hosts[h1] = hostUse{Uses: true, For: 300 * time.Millisecond}
	if h := x.look().Hosts[0]; !h.CanUse[1] || h.Since[1] != x.now-3e8 {
		t.Fatalf("%+v", h)
	}
	x.reports[1].Hosts[h1] = hostUse{Uses: true, For: 100 * time.Millisecond} // logged in again between two looks
	if h := x.look().Hosts[0]; h.Since[1] != x.now-1e8 {
		t.Fatalf("a login that was replaced is not seen: %+v", h)
	}
	delete(x.reports[1].Hosts, h1)
	if h := x.look().Hosts[0]; h.CanUse[1] || h.Session[1] || h.Since[1] != x.now {
		t.Fatalf("%+v", h)
	}
	delete(x.reports[0].Hosts, h1)
	if l := x.look(); len(l.Hosts) != 0 {
		t.Fatalf("a host without a session is still there: %+v", l.Hosts)
	}
}

// The share that came to the other node counts what came while this chair looked, under the present
// owner, and from one process.
func TestChairCountsTrafficOfThePresentOwnerOnly(t *testing.T) {
	x := newLooking()
	x.reads(1, 1<<30) // before this chair
	x.look()
	x.reads(0, 1000)
	if h := x.look().Hosts[0]; !h.Active || h.Other != 0 || h.Work <= 0 {
		t.Fatalf("%+v", h)
	}
	x.reads(1, 3000)
	if h := x.look().Hosts[0]; h.Other < 0.74 || h.Other > 0.76 {
		t.Fatalf("%+v", h)
	}
	x.lun.Owner, x.lun.Seq = "b", 8
	x.look()
	x.reads(1, 1000)
	if h := x.look().Hosts[0]; h.Other != 0 {
		t.Fatalf("what came before the move counts: %+v", h)
	}
	x.reports[0].Process = 99
	x.reports[0].LUNs["l"][h1] = lunUse{Bytes: 1 << 40, Ops: 1}
	if h := x.look().Hosts[0]; h.Other != 0 {
		t.Fatalf("another process's counters count: %+v", h)
	}
	delete(x.reports[0].LUNs, "l")
	delete(x.reports[1].LUNs, "l")
	if h := x.look().Hosts[0]; h.Active {
		t.Fatalf("%+v", h)
	}
}

// The status says what a LUN waits for that is not at home.
func TestChairSaysWhatLUNsWaitFor(t *testing.T) {
	x := newLooking()
	d := &meta.Drain{Node: "b", Until: time.Now().Add(time.Minute), Reason: "restart"}
	for _, c := range []struct {
		say    string
		change func(p *balance.Policy) *meta.Drain
	}{
		{"node b is drained until", func(*balance.Policy) *meta.Drain { return d }},
		{"balancing is off", func(p *balance.Policy) *meta.Drain { p.Mode = balance.Off; return nil }},
		{"balancing only observes", func(p *balance.Policy) *meta.Drain { p.Mode = balance.Observe; return nil }},
		{"node b is in sync again", func(*balance.Policy) *meta.Drain { return nil }},
		{"is not logged in at node b", func(*balance.Policy) *meta.Drain {
			x.now += int64(time.Minute)
			delete(x.reports[1].Hosts, h1)
			return nil
		}},
		{"has not used that path since", func(*balance.Policy) *meta.Drain { x.reports[1].Hosts[h1] = hostUse{}; return nil }},
		{"can use node b again, and has to", func(*balance.Policy) *meta.Drain { x.reports[1].Hosts[h1] = hostUse{Uses: true}; return nil }},
		{"about to move", func(*balance.Policy) *meta.Drain {
			x.reports[1].Hosts[h1] = hostUse{Uses: true, For: time.Minute}
			return nil
		}},
	} {
		var p balance.Policy
		drain := c.change(&p)
		x.now += int64(time.Second)
		v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, drain, x.reports)
		if away, why := whyAway(v, p, drain); away != 1 || !strings.Contains(why, c.say) {
			t.Errorf("%d %q, want %q", away, why, c.say)
		}
	}
	x.lun.Owner = "b"
	v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, nil, x.reports)
	if away, why := whyAway(v, balance.Policy{}, nil); away != 0 || why != "" {
		t.Errorf("%d %q", away, why)
	}
}

// The view has what the nodes use, with the work of a LUN at its owner.
func TestChairSeesWorkAtTheOwner(t *testing.T) {
	x := newLooking()
	x.lun.Size = 1 << 30
	x.k.pause = 3e-3
	w := work.LUN{Fast: 0.2, Slow: 0.3, Full: 0.3, Read: 1 << 30}
	x.reports[0].Work = work.Report{CPUs: 1, CPU: 0.4, Full: 0.3, LUNs: map[string]work.LUN{"l": w}}
	x.reports[1].Work = work.Report{CPUs: 1, CPU: 0.1}
	x.now += int64(time.Second)
	v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, nil, x.reports)
	l := &v.LUNs[0]
	if l.Slow < 0.39 || l.Slow > 0.41 || l.Fast >= l.Slow || l.Cold != 1 || l.Pause != 3e-3 {
		t.Errorf("%+v", l)
	}
	if a, b := v.Nodes[0].Use, v.Nodes[1].Use; a < 0.39 || a > 0.41 || b != 0.1 {
		t.Errorf("%v %v", a, b)
	}
	x.lun.Owner = "b"
	v, _ = x.k.look(x.now, []*meta.LUN{x.lun}, nil, x.reports)
	if a, b := v.Nodes[0].Use, v.Nodes[1].Use; a > 0.01 || b < 0.49 || b > 0.51 {
		t.Errorf("after a move: %v %v", a, b)
	}
}

// The view is of the disks under a volume where they are scarcer than CPUs, and work begins to be
// counted again when that changes. What the nodes use of CPUs is kept for people.
func TestChairSeesDisks(t *testing.T) {
	x := newLooking()
	x.lun.Size = 1 << 30
	x.reports[0].Work = work.Report{CPUs: 1, CPU: 0.3, LUNs: map[string]work.LUN{"l": {Fast: 1e-3, Slow: 1e-3, DiskFast: 0.3, DiskSlow: 0.4, Read: 1 << 20}},
		Disks: map[string]work.DiskUse{meta.VolumeName(""): {Busy: 0.8, Wait: 0.01}}}
	x.reports[1].Work = work.Report{CPUs: 1, CPU: 0.1}
	look := func() *balance.View {
		x.now += int64(time.Second)
		v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, nil, x.reports)
		return v
	}
	if v := look(); v.Disk != "" || v.Nodes[0].Use != 0.3 || v.LUNs[0].Slow > 0.01 || v.Disturbed == v.Now {
		t.Errorf("the other node does not know its disk: %+v", v)
	}
	x.reports[1].Work.Disks = map[string]work.DiskUse{meta.VolumeName(""): {Busy: 0.1, Wait: 0.01}}
	v := look()
	if v.Disk != meta.VolumeName("") || v.Disturbed != v.Now || v.Nodes[0].Use != 0.8 || v.Nodes[1].Use != 0.1 {
		t.Errorf("%+v", v)
	}
	if l := v.LUNs[0]; l.Fast != 0.3 || l.Slow != 0.4 || l.Cold <= 0 || l.Crowds {
		t.Errorf("%+v", l)
	}
	if use := x.k.resources[0].Use; use[0] != 0.3 || use[1] != 0.1 {
		t.Errorf("CPUs: %v", use)
	}
	x.lun.Owner = "b"
	v = look()
	if a, b := v.Nodes[0].Use, v.Nodes[1].Use; a < 0.39 || a > 0.41 || b != 0.5 || v.Disturbed == v.Now {
		t.Errorf("after a move: %v %v", a, b)
	}
	x.lun.Owner = "a"
	x.reports[0].Work.LUNs["l"] = work.LUN{Fast: 0.3, Slow: 0.3, DiskFast: 0.3, DiskSlow: 0.4}
	x.reports[1].Work.CPU = 0.6
	if l := look().LUNs[0]; !l.Crowds {
		t.Errorf("it would make CPUs of node b scarcer than the disk of node a is: %+v", l)
	}
}

// A scrub of either node, and the beginning and the end of a drain, make work say nothing for a
// while.
func TestChairSeesDisturbances(t *testing.T) {
	x := newLooking()
	look := func(d *meta.Drain) bool {
		x.now += int64(time.Minute)
		v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, d, x.reports)
		return v.Disturbed == v.Now
	}
	d := &meta.Drain{Node: "b", Until: time.Now().Add(time.Hour)}
	x.reports[1].Work.Background = true
	for i, want := range []bool{true, true} {
		if look(nil) != want {
			t.Errorf("look %d of a scrub", i)
		}
	}
	x.reports[1].Work.Background = false
	for i, c := range []struct {
		d    *meta.Drain
		want bool
	}{{nil, false}, {d, true}, {d, false}, {nil, true}, {nil, false}} {
		if look(c.d) != c.want {
			t.Errorf("look %d of a drain: want %v", i, c.want)
		}
	}
}
