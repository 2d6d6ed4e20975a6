package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// enough operations have to be acknowledged after an event, so that the longest one means
// something.
const enough = 1000

// ordeal is a worker with a load on one volume, to which things happen.
type ordeal struct {
	r *rig
	w *worker
	v *volume
	l *load
}

// begin stages a raw volume and starts to write to it.
func (o *ordeal) begin(ctx context.Context) {
	GinkgoHelper()
	var err error
	o.v, err = o.w.create(ctx, 256<<20, "a", "")
	Expect(err).NotTo(HaveOccurred())
	Expect(o.v.stage(ctx)).To(Succeed())
	o.l, err = startLoad(ctx, o.w.Guest, o.v.device(), 32<<20, 4)
	Expect(err).NotTo(HaveOccurred())
}

// event measures the longest operation around something that happens; worst, if any, is where the
// longest of its kind is kept. Bounds are generous: the worker is emulated. An event during which
// the machine starved this process is not counted: a target that does not run, or cannot write,
// loses its lease and is right to.
func (o *ordeal) event(ctx context.Context, what string, worst *float64, bound time.Duration, happen func() error) (counted bool) {
	GinkgoHelper()
	before, err := o.l.begin(ctx)
	Expect(err).NotTo(HaveOccurred())
	begun := time.Since(runBegun)
	Expect(happen()).To(Succeed(), what)
	o.goesOn(ctx, what, before.Operations+enough)
	m, err := o.l.measure(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(m.Errors).To(BeEmpty())
	text := fmt.Sprintf("longest of %d operations: %.0f ms", m.Operations, m.LongestMS)
	if late := machine.Longest(begun, time.Since(runBegun)); late > 0 {
		AddReportEntry(what, fmt.Sprintf("%s, not counted: the machine was %v late", text, late.Round(time.Millisecond)))
		results.Starved++
		return false
	}
	AddReportEntry(what, text)
	if worst != nil {
		*worst = max(*worst, m.LongestMS)
	}
	Expect(m.LongestMS).To(BeNumerically("<", bound.Milliseconds()), what)
	return true
}

// repeat has an event happen until it was counted so often; a machine that starves all the time
// proves nothing.
func repeat(times int, event func() (counted bool)) {
	GinkgoHelper()
	counted := 0
	for tries := 0; counted < times; tries++ {
		Expect(tries).To(BeNumerically("<", 4*times), "the machine starves: only %d of %d events could be counted", counted, tries)
		if event() {
			counted++
		}
	}
}

// goesOn waits until so many operations have been acknowledged.
func (o *ordeal) goesOn(ctx context.Context, what string, operations int64) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		m, err := o.l.count(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		if len(m.Errors) > 0 {
			StopTrying("the load has failed").Attach("errors", m.Errors).Now()
		}
		g.Expect(m.Operations).To(BeNumerically(">=", operations))
	}).WithTimeout(90*time.Second).Should(Succeed(), what)
}

// finish ends the load: nothing was lost, nothing stays on the worker.
func (o *ordeal) finish(ctx context.Context) {
	GinkgoHelper()
	m, err := o.l.finish(ctx)
	Expect(err).NotTo(HaveOccurred())
	AddReportEntry("operations", m.Operations)
	Expect(m.Errors).To(BeEmpty())
	Expect(m.Lost).To(BeEmpty())
	Expect(o.v.unstage(ctx)).To(Succeed())
	Expect(o.w.left(ctx)).To(BeEmpty())
}

func (o *ordeal) owner(ctx context.Context) int {
	GinkgoHelper()
	i, err := o.v.owner(ctx)
	Expect(err).NotTo(HaveOccurred())
	return i
}

// owned waits until a node owns the volume, as either node says.
func (o *ordeal) owned(ctx context.Context, node int, limit time.Duration) {
	GinkgoHelper()
	begun := time.Now()
	Eventually(func() string {
		for i := range harness.Names {
			asked, cancel := context.WithTimeout(ctx, 2*time.Second)
			l, err := o.r.pair.Client(i).GetLUN(asked, &targetv1.GetLUNRequest{Uuid: o.v.id})
			cancel()
			if err == nil && l.Owner == harness.Names[node] {
				return l.Owner
			}
		}
		return ""
	}).WithContext(ctx).WithTimeout(limit).WithPolling(200 * time.Millisecond).Should(Equal(harness.Names[node]))
	AddReportEntry("owned by node "+harness.Names[node]+" after", time.Since(begun).Round(100*time.Millisecond))
}

// homeAgain waits until the volume is back at its home, and measures the time around the move and
// until the worker uses the paths of the new owner. Before the move is a time in which nothing
// happens: it is measured in windows of its own. A move before the first window is not counted.
func (o *ordeal) homeAgain(ctx context.Context, home int, limit time.Duration) (counted bool) {
	GinkgoHelper()
	begun, last := time.Now(), 0.0
	for {
		var longest float64
		there := o.owner(ctx) == home
		if there {
			AddReportEntry("owned by node "+harness.Names[home]+" after", time.Since(begun).Round(100*time.Millisecond))
		}
		ok := o.event(ctx, "home again", &longest, plannedBound, func() error {
			if there {
				o.switched(ctx)
			}
			return nil
		})
		if there { // the move was in this window, or in the one before
			results.Pause.FailBack = max(results.Pause.FailBack, last, longest)
			return counted && ok
		}
		results.Pause.Steady = max(results.Pause.Steady, last)
		last, counted = longest, ok
		Expect(time.Since(begun)).To(BeNumerically("<", limit), "not home again")
	}
}

func (o *ordeal) settled(ctx context.Context) { GinkgoHelper(); o.v.settled(ctx) }

// switched waits until the worker sends I/O to the paths of the owner, as multipathd knows: seconds
// after the owner has changed.
func (o *ordeal) switched(ctx context.Context) {
	GinkgoHelper()
	o.settled(ctx)
	Eventually(func(g Gomega) {
		out, err := o.w.Shell(ctx, "multipathd show map 3"+o.v.wwid+" json")
		g.Expect(err).NotTo(HaveOccurred())
		var t struct {
			Map struct {
				Groups []struct {
					State string `json:"dm_st"`
					Prio  int    `json:"pri"`
				} `json:"path_groups"`
			} `json:"map"`
		}
		g.Expect(json.Unmarshal([]byte(out), &t)).To(Succeed())
		g.Expect(t.Map.Groups).To(ContainElement(And(HaveField("State", "active"), HaveField("Prio", 50))))
	}).WithContext(ctx).WithTimeout(30 * time.Second).WithPolling(500 * time.Millisecond).Should(Succeed())
}

// owner is the node that owns the volume, as the pair says.
func (v *volume) owner(ctx context.Context) (int, error) {
	l, err := v.w.rig.pair.Client(0).GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: v.id})
	return slices.Index(harness.Names[:], l.GetOwner()), err
}

// move gives a volume to a node.
func (v *volume) move(ctx context.Context, to int) error {
	_, err := v.w.rig.pair.Client(0).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{v.id}, ToNode: harness.Names[to]})
	return err
}

// settled waits until every path serves again and the owner's, and no other, are optimized. The
// owner is asked for each time: a node that is starved for longer than its lease loses its LUNs.
func (v *volume) settled(ctx context.Context) {
	GinkgoHelper()
	Expect(v.w.rig.pair.WaitInSync(ctx)).To(Succeed())
	Eventually(func() (string, error) {
		owner, err := v.owner(ctx)
		if err != nil {
			return "", err
		}
		var want []string
		for _, p := range v.portals {
			host, _, _ := net.SplitHostPort(p.Address)
			state := "active/non-optimized"
			if p.Node == harness.Names[owner] {
				state = "active/optimized"
			}
			want = append(want, host+" active "+state)
		}
		slices.Sort(want)
		got, err := v.paths(ctx)
		if err != nil || got == strings.Join(want, "\n") {
			return "", err
		}
		return fmt.Sprintf("want:\n%s\nthe worker has:\n%s", strings.Join(want, "\n"), got), nil
	}).WithTimeout(90 * time.Second).WithPolling(500 * time.Millisecond).Should(BeEmpty())
}

// paths lists a volume's paths: portal, state in the map, state that the target reports.
func (v *volume) paths(ctx context.Context) (string, error) {
	out, err := v.w.Shell(ctx, `m=$(basename $(readlink -f `+v.device()+`))
multipathd show paths raw format "%d %t" | while read d state; do
  [ -e /sys/block/$m/slaves/$d ] || continue
  n=$(readlink -f /sys/block/$d/device | grep -o 'session[0-9]*' | head -1)
  echo $(cat /sys/class/iscsi_connection/connection${n#session}:0/persistent_address) $state $(cat /sys/block/$d/device/access_state)
done | sort`)
	return strings.TrimSpace(out), err
}

// activePaths counts the paths that the map uses.
func (v *volume) activePaths(ctx context.Context) (int, error) {
	out, err := v.paths(ctx)
	return strings.Count(out, " active "), err
}
