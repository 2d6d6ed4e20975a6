package work

import (
	"fmt"
	"iter"
	"math"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/count"
)

// node plays the counters of one node, a look every two seconds.
type node struct {
	m    Meter
	now  int64
	cpu  time.Duration
	luns map[string]*count.LUN

	volumes map[string]string // of LUNs
	disks   map[string]Disk
}

func newNode(luns int) *node {
	n := &node{now: int64(time.Hour), luns: map[string]*count.LUN{}}
	for i := range luns {
		n.luns[fmt.Sprintf("l%d", i)] = &count.LUN{}
	}
	n.look()
	return n
}

func (n *node) look() { n.m.Look(n.now, n.cpu, n.sources(), n.disks) }

func (n *node) sources() iter.Seq2[string, Source] {
	return func(yield func(string, Source) bool) {
		for id, l := range n.luns {
			if !yield(id, Source{l, n.volumes[id]}) {
				return
			}
		}
	}
}

const every = 2 * time.Second

// run has LUN l0 take so many commands a second, and the process so much CPU, for a while.
func (n *node) run(d time.Duration, kind count.Kind, way count.Way, rate int, bytes int64, cpu float64) {
	for ; d > 0; d -= every {
		n.now += int64(every)
		n.cpu += time.Duration(cpu * float64(every))
		for range rate * int(every/time.Second) {
			n.luns["l0"].Add(kind, way, bytes, time.Millisecond)
		}
		n.look()
	}
}

func (n *node) report() Report { return n.m.Report(2, false) }

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.02*math.Abs(want)+1e-9 {
		t.Errorf("%s: %.6f, want %.6f", what, got, want)
	}
}

// From the first seconds on the averages are of what was seen, and not of zeros before it.
func TestAveragesAreOfTheTimeThatWasSeen(t *testing.T) {
	n := newNode(1)
	n.run(4*time.Second, count.Read, count.Own, 1000, 4096, 0.3)
	l := n.report().LUNs["l0"]
	want := 1000 * (9e-6 + 4096*0.5e-9)
	near(t, "fast", l.Fast, want)
	near(t, "slow", l.Slow, want)
	near(t, "CPU", n.report().CPU, 0.3)
	near(t, "bytes read", l.Read, 1000*4096)
}

// The fast window forgets within a minute, the slow one does not.
func TestTwoWindows(t *testing.T) {
	n := newNode(1)
	n.run(10*time.Minute, count.Read, count.Own, 1000, 4096, 0)
	busy := n.report().LUNs["l0"]
	n.run(time.Minute, count.Read, count.Own, 0, 0, 0)
	l := n.report().LUNs["l0"]
	if l.Fast > 0.01*busy.Fast || l.Slow < 0.7*busy.Slow || l.Slow > 0.95*busy.Slow {
		t.Errorf("busy %+v, a minute later %+v", busy, l)
	}
}

// One long gap between two looks counts like many short ones.
func TestLongGap(t *testing.T) {
	n, o := newNode(1), newNode(1)
	n.run(10*time.Minute, count.Read, count.Own, 500, 4096, 0.1)
	for range 500 * 600 {
		o.luns["l0"].Add(count.Read, count.Own, 4096, time.Millisecond)
	}
	o.now += int64(10 * time.Minute)
	o.cpu += time.Minute
	o.look()
	near(t, "slow", o.report().LUNs["l0"].Slow, n.report().LUNs["l0"].Slow)
	near(t, "CPU", o.report().CPU, n.report().CPU)
}

// A command counts where it was executed: not at the node that has forwarded it.
func TestForwardedCommandsAreWorkOfTheOwner(t *testing.T) {
	n := newNode(1)
	n.run(time.Minute, count.Read, count.Forwarded, 1000, 4096, 0)
	if r := n.report(); len(r.LUNs) > 0 || r.Full > 0 {
		t.Errorf("%+v", r)
	}
	n.run(time.Minute, count.Read, count.Remote, 1000, 4096, 0)
	if r := n.report(); r.LUNs["l0"].Slow == 0 {
		t.Errorf("%+v", r)
	}
}

// What was counted before the first look, and what a LUN of the same name counted before it was
// made again, is not taken for what happens now.
func TestOnlyWhatIsNewCounts(t *testing.T) {
	n := &node{now: 1, luns: map[string]*count.LUN{"l0": {}}}
	for range 100000 {
		n.luns["l0"].Add(count.Read, count.Own, 4096, time.Millisecond)
	}
	n.look()
	n.run(10*time.Second, count.Read, count.Own, 0, 0, 0)
	if r := n.report(); r.Full > 0 {
		t.Errorf("old commands count: %+v", r)
	}
	n.run(10*time.Second, count.Read, count.Own, 100, 0, 0)
	n.luns["l0"] = &count.LUN{}
	n.run(2*time.Minute, count.Read, count.Own, 0, 0, 0)
	if r := n.report(); r.LUNs["l0"].Fast > 1e-6 || r.Full < 0 {
		t.Errorf("%+v", r)
	}
	delete(n.luns, "l0")
	n.now += int64(every)
	n.look()
	if len(n.m.luns) > 0 {
		t.Error("a LUN that is gone is remembered")
	}
}

// Of a write only the owner's part goes along with a LUN.
func TestWritesMoveInPart(t *testing.T) {
	n := newNode(1)
	n.run(time.Minute, count.Write, count.Own, 1000, 4096, 0)
	l := n.report().LUNs["l0"]
	near(t, "what moves", l.Slow, l.Full-l.Mirror)
	if l.Slow < 0.2*l.Full || l.Slow > 0.5*l.Full {
		t.Errorf("%+v", l)
	}
}

func TestReportIsBounded(t *testing.T) {
	n := newNode(2 * MaxLUNs)
	for id, l := range n.luns {
		times := 1
		if id == "l7" {
			times = 100
		}
		for range times {
			l.Add(count.Read, count.Own, 1<<20, time.Millisecond)
		}
	}
	n.now += int64(every)
	n.look()
	r := n.report()
	if len(r.LUNs) != MaxLUNs || r.LUNs["l7"].Slow == 0 {
		t.Errorf("%d LUNs, the busiest one: %+v", len(r.LUNs), r.LUNs["l7"])
	}
	listed := 0.0
	for _, l := range r.LUNs {
		listed += l.Full
	}
	if r.Full <= listed {
		t.Error("the sum is of all LUNs, not of those in the list")
	}
}

func TestClockThatStandsStill(t *testing.T) {
	n := newNode(1)
	n.luns["l0"].Add(count.Read, count.Own, 4096, time.Millisecond)
	n.look()
	if r := n.report(); math.IsNaN(r.CPU) || len(r.LUNs) > 0 {
		t.Errorf("%+v", r)
	}
	n.run(every, count.Read, count.Own, 0, 0, 0)
	if n.report().LUNs["l0"].Slow == 0 {
		t.Error("the command is lost")
	}
}

// BenchmarkLook is what a look costs with many LUNs of which few are used.
func BenchmarkLook(b *testing.B) {
	n := newNode(10000)
	all := n.sources()
	for b.Loop() {
		n.now += int64(every)
		for i := range 100 {
			n.luns[fmt.Sprintf("l%d", i)].Add(count.Read, count.Own, 4096, time.Millisecond)
		}
		n.m.Look(n.now, n.cpu, all, nil)
		n.m.Report(2, false)
	}
}
