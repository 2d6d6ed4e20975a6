package work

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/count"
)

// newDisks is a node with LUNs l0 and l1 on volume "x", l2 on "y", and a disk under each.
func newDisks() *node {
	n := newNode(3)
	n.volumes = map[string]string{"l0": "x", "l1": "x", "l2": "y"}
	n.disks = map[string]Disk{"x": {Busy: time.Hour, Reads: 1e6, Reading: 5 * time.Hour, All: 9 * time.Hour}, "y": {}}
	n.now += int64(every)
	n.look()
	return n
}

// second lets a second pass in which a disk did so much, and LUNs waited so long for it.
func (n *node) second(volume string, did Disk, waited map[string]time.Duration) {
	d := n.disks[volume]
	n.disks[volume] = Disk{d.Busy + did.Busy, d.Reads + did.Reads, d.Reading + did.Reading, d.All + did.All}
	for id, w := range waited {
		n.luns[id].AddDisk(w)
	}
	n.now += int64(time.Second)
	n.look()
}

const ms = time.Millisecond

// Two LUNs read, one with three times as much in the queue, and half of the disk's time is of
// writes: they share what the disk was busy with reads.
func TestDiskTimeIsApportioned(t *testing.T) {
	n := newDisks()
	for range 600 {
		n.second("x", Disk{800 * ms, 100, 2000 * ms, 4000 * ms}, map[string]time.Duration{"l0": 1500 * ms, "l1": 500 * ms})
	}
	r := n.report()
	near(t, "busy", r.Disks["x"].Busy, 0.8)
	near(t, "of a read", r.Disks["x"].Wait, 0.02)
	near(t, "l0", r.LUNs["l0"].DiskSlow, 0.3)
	near(t, "l0, lately", r.LUNs["l0"].DiskFast, 0.3)
	near(t, "l1", r.LUNs["l1"].DiskSlow, 0.1)
	if l, ok := r.LUNs["l2"]; ok {
		t.Errorf("on another volume: %+v", l)
	}
	near(t, "the other disk", r.Disks["y"].Busy, 0)
}

// Whatever is counted, LUNs do not get more than what the disk was busy, and congestion, which lets
// the same reads take ten times as long, gives no LUN more.
func TestNoMoreIsApportionedThanMeasured(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := newDisks()
		any := func() time.Duration { return time.Duration(rng.Int64N(int64(30 * time.Second))) }
		for range 40 {
			n.second("x", Disk{min(any(), time.Duration(rng.Int64N(int64(2*time.Second)))), rng.Uint64N(1000), any(), any()}, map[string]time.Duration{"l0": any(), "l1": any(), "l2": any()})
			r := n.report()
			if sum := r.LUNs["l0"].DiskSlow + r.LUNs["l1"].DiskSlow; sum > r.Disks["x"].Busy+1e-9 || sum > 1 || math.IsNaN(sum) {
				t.Fatalf("%.4f of %+v", sum, r.Disks["x"])
			}
			if r.LUNs["l2"].DiskSlow != 0 {
				t.Fatal("of a disk that did nothing")
			}
		}
	}
	calm, crowded := newDisks(), newDisks()
	for range 600 {
		calm.second("x", Disk{900 * ms, 100, 900 * ms, 1000 * ms}, map[string]time.Duration{"l0": 900 * ms})
		crowded.second("x", Disk{900 * ms, 100, 9000 * ms, 10000 * ms}, map[string]time.Duration{"l0": 9000 * ms})
	}
	near(t, "while requests wait", crowded.report().LUNs["l0"].DiskSlow, calm.report().LUNs["l0"].DiskSlow)
}

// What others read, and a disk does by itself, is no work of LUNs; what the kernel reads ahead is.
func TestReadsOfOthersAreNoWorkOfLUNs(t *testing.T) {
	n := newDisks()
	for range 600 {
		n.second("x", Disk{900 * ms, 100, 20000 * ms, 20000 * ms}, map[string]time.Duration{"l0": 500 * ms})
		n.second("y", Disk{900 * ms, 100, 1500 * ms, 1500 * ms}, map[string]time.Duration{"l2": 500 * ms})
	}
	r := n.report()
	near(t, "a tenth of all reads", r.LUNs["l0"].DiskSlow, 0.9*0.1/2)
	near(t, "reads ahead", r.LUNs["l2"].DiskSlow, 0.9/2)
}

// A disk that is not known counts nothing; one that comes, or is another one with counters of its
// own, begins with what it does then, and is not averaged with zeros.
func TestDisksThatComeAndGo(t *testing.T) {
	n := newDisks()
	x := n.disks["x"]
	delete(n.disks, "x")
	reads := map[string]time.Duration{"l0": 500 * ms}
	for range 60 {
		n.second("y", Disk{}, reads)
	}
	r := n.report()
	if _, known := r.Disks["x"]; known || r.LUNs["l0"].DiskSlow != 0 {
		t.Errorf("%+v", r)
	}
	n.disks["x"] = x
	n.second("x", Disk{}, reads)
	for range 10 {
		n.second("x", Disk{500 * ms, 50, 500 * ms, 500 * ms}, reads)
	}
	near(t, "busy", n.report().Disks["x"].Busy, 0.5)
	n.disks["x"] = Disk{} // it is another one
	n.second("x", Disk{900 * ms, 1, 900 * ms, 900 * ms}, reads)
	if _, known := n.report().Disks["x"]; known {
		t.Error("what another disk counted before is taken for recent")
	}
}

// What was counted of reads before the first look is not taken for what happens now.
func TestOldReadsDoNotCount(t *testing.T) {
	n := newNode(1)
	n = &node{now: n.now, luns: map[string]*count.LUN{"l0": {}, "l1": {}}, volumes: map[string]string{"l0": "x", "l1": "x"}, disks: map[string]Disk{"x": {}}}
	n.luns["l0"].AddDisk(time.Hour)
	n.look()
	n.second("x", Disk{900 * ms, 50, 500 * ms, 500 * ms}, map[string]time.Duration{"l1": 500 * ms})
	if r := n.report(); r.LUNs["l0"].DiskSlow > 0 || r.LUNs["l1"].DiskSlow < 0.8 {
		t.Errorf("%+v", r.LUNs)
	}
}

// A report is bounded by work of disks as well: a LUN that takes much of a disk and little CPU is
// in it.
func TestReportHasThoseWithDiskTime(t *testing.T) {
	n := newNode(2 * MaxLUNs)
	n.disks = map[string]Disk{"": {}}
	n.now += int64(every)
	n.look()
	for id, l := range n.luns {
		if id != "l7" {
			l.Add(count.Read, count.Own, 1<<20, time.Millisecond)
		}
	}
	n.second("", Disk{900 * ms, 50, 500 * ms, 500 * ms}, map[string]time.Duration{"l7": 500 * ms})
	if r := n.report(); len(r.LUNs) != MaxLUNs || r.LUNs["l7"].DiskSlow < 0.25 {
		t.Errorf("%d LUNs, l7 %+v", len(r.LUNs), r.LUNs["l7"])
	}
}
