package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

var now = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// ago is a time before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func at(d time.Duration) *metav1.Time { t := ago(d); return &t }

const day = 24 * time.Hour

// set sets a condition, which has its status since a time.
func set(list *[]metav1.Condition, kind string, ok bool, reason, message string, since time.Duration) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: ago(since)}
	if ok {
		c.Status = metav1.ConditionTrue
	}
	*list = append(slices.DeleteFunc(*list, func(c metav1.Condition) bool { return c.Type == kind }), c)
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func made(name string, d time.Duration) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Generation: 1, CreationTimestamp: ago(d), ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: v1alpha1.OperatorManager, Time: at(d)}, {Manager: v1alpha1.OperatorManager, Subresource: "status", Time: at(0)}}}
}

// writtenBefore says when the spec (subresource "") or the status was written last.
func writtenBefore(m *metav1.ObjectMeta, subresource string, d time.Duration) {
	for i := range m.ManagedFields {
		if m.ManagedFields[i].Subresource == subresource {
			m.ManagedFields[i].Time = at(d)
		}
	}
}

const iqn = "iqn.2026-11.storage.gemel:main.main-p"

func uuid(i int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", i) }

// healthy are the objects of a cluster without trouble, a day old: two pairs, LUNs of which every
// second one is on each, snapshots and two workers.
func healthy(luns int) *Objects {
	o := &Objects{Namespace: "gemel-system"}
	c := v1alpha1.StorageCluster{ObjectMeta: made("main", 60*day), Spec: v1alpha1.StorageClusterSpec{Pairs: 2, Pools: []v1alpha1.Pool{{Name: "default"}, {Name: "fast"}}},
		Status: v1alpha1.StorageClusterStatus{ObservedGeneration: 1, Pairs: 2, ReadyPairs: 2}}
	set(&c.Status.Conditions, v1alpha1.ConditionReady, true, "Ready", "every pair serves", day)
	set(&c.Status.Conditions, v1alpha1.ConditionUpToDate, true, "Ready", "every node matches the spec", day)
	o.Clusters = []v1alpha1.StorageCluster{c}
	for i := range 2 {
		p := v1alpha1.TargetPair{ObjectMeta: made(fmt.Sprintf("main-p%d", i), 60*day), Spec: v1alpha1.TargetPairSpec{Cluster: "main", ColdStart: "Wait",
			Nodes: []v1alpha1.PairNode{{Name: "a", Worker: "worker-1", Address: fmt.Sprintf("10.0.%d.1", i)}, {Name: "b", Worker: "worker-2", Address: fmt.Sprintf("10.0.%d.2", i)}}},
			Status: v1alpha1.TargetPairStatus{ObservedGeneration: 1, TargetIQN: iqn + fmt.Sprint(i), Epoch: 4, Members: []string{"a", "b"}, LogicalUnits: int32(luns / 2),
				Capacity: quantity("2Ti"), Free: quantity("1Ti"),
				Nodes:     []v1alpha1.NodeStatus{{Name: "a", Phase: "InSync", Image: "gemel:1"}, {Name: "b", Phase: "InSync", Image: "gemel:1"}},
				Pools:     []v1alpha1.PoolStatus{{Name: "default", Capacity: quantity("1Ti"), Free: quantity("500Gi")}, {Name: "fast", Capacity: quantity("1Ti"), Free: quantity("500Gi")}},
				Ownership: &v1alpha1.OwnershipStatus{},
				Scrub: &v1alpha1.ScrubStatus{Schedule: "0 2 * * 6", NextAt: at(-3 * day), Skipped: []v1alpha1.ScrubSkip{{Reason: "moved", Ranges: 1, Bytes: 1 << 20}},
					LastResult: &v1alpha1.ScrubResult{Result: "Clean", FinishedAt: at(4 * day)}}}}
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionInSync, v1alpha1.ConditionReachable, v1alpha1.ConditionUpToDate} {
			set(&p.Status.Conditions, kind, true, "Ready", "good", 10*day)
		}
		o.Pairs = append(o.Pairs, p)
	}
	for i := range luns {
		lu := v1alpha1.LogicalUnit{ObjectMeta: made(fmt.Sprintf("lun-%05d", i), day), Spec: v1alpha1.LogicalUnitSpec{Cluster: "main",
			Hosts: []v1alpha1.HostAccess{{IQN: "iqn.2026-11.storage.gemel:node.worker-1"}}, Placement: &v1alpha1.Placement{Pair: fmt.Sprintf("main-p%d", i%2), UUID: uuid(i)}},
			Status: v1alpha1.LogicalUnitStatus{ObservedGeneration: 1, Owner: "a", PreferredNode: "a", InSync: true}}
		set(&lu.Status.Conditions, v1alpha1.ConditionReady, true, "Ready", "the LUN exists", day)
		set(&lu.Status.Conditions, v1alpha1.ConditionPublished, true, "Ready", "the 1 hosts of the spec can reach the LUN", day)
		o.LUNs = append(o.LUNs, lu)
	}
	for i := range max(1, luns/10) {
		s := v1alpha1.LogicalUnitSnapshot{ObjectMeta: made(fmt.Sprintf("snap-%05d", i), day), Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "main", Source: "lun-00000",
			Placement: &v1alpha1.SnapshotPlacement{Pair: "main-p0", UUID: uuid(1e6 + i), SourceUUID: uuid(0)}}, Status: v1alpha1.LogicalUnitSnapshotStatus{ObservedGeneration: 1}}
		set(&s.Status.Conditions, v1alpha1.ConditionReady, true, "Ready", "the snapshot exists", day)
		o.Snapshots = append(o.Snapshots, s)
	}
	g := v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: made("group-00000", day), Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "main"}, Status: v1alpha1.LogicalUnitGroupSnapshotStatus{ObservedGeneration: 1}}
	set(&g.Status.Conditions, v1alpha1.ConditionReady, true, "Ready", "the snapshots are of one instant", day)
	o.Groups = append(o.Groups, g)
	for i := range 2 {
		h := v1alpha1.Host{ObjectMeta: made(fmt.Sprintf("worker-%d", i+1), 60*day), Spec: v1alpha1.HostSpec{IQN: fmt.Sprintf("iqn.2026-11.storage.gemel:node.worker-%d", i+1), AttachMode: "Kernel"},
			Status: v1alpha1.HostStatus{ObservedGeneration: 1, Attached: 2}}
		for j := range 2 {
			portals := []string{fmt.Sprintf("10.0.%d.1:3260", j), fmt.Sprintf("10.0.%d.2:3260", j)}
			h.Status.Worker = append(h.Status.Worker, v1alpha1.HostPaths{Target: iqn + fmt.Sprint(j), LUNs: 1,
				Portals: []v1alpha1.HostPortal{{Portal: portals[0], Connected: 1, Optimized: 1}, {Portal: portals[1], Connected: 1, NonOptimized: 1}}})
			h.Status.Targets = append(h.Status.Targets, v1alpha1.HostSessions{Target: iqn + fmt.Sprint(j), Pair: fmt.Sprintf("main-p%d", j), Nodes: []v1alpha1.HostSession{
				{Node: "a", Portal: portals[0], Sessions: 1, LastRTPG: at(12 * time.Minute)}, {Node: "b", Portal: portals[1], Sessions: 1, LastRTPG: at(12 * time.Minute)}}})
		}
		set(&h.Status.Conditions, v1alpha1.ConditionReady, true, "Ready", "the node plugin runs", day)
		set(&h.Status.Conditions, v1alpha1.ConditionPathsComplete, true, "Ready", "worker and targets see every path", day)
		o.Hosts = append(o.Hosts, h)
	}
	return o
}

// trouble is a case of a rule. The objects are healthy before spoil.
type trouble struct {
	name     string
	rule     string
	severity Severity
	object   string
	spoil    func(o *Objects)
	// fine changes the spoiled objects so that there is no finding: the trouble is gone, has not
	// lasted for long yet, or is that of another rule.
	fine map[string]func(o *Objects)
	says []string // in the finding
}

// check runs the cases of one rule file.
func check(t *testing.T, cases []trouble) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			o := healthy(6)
			c.spoil(o)
			list := Examine(o, now)
			if len(list) != 1 {
				t.Fatalf("%d findings: %+v", len(list), list)
			}
			f := list[0]
			if f.Rule != c.rule || f.Severity != c.severity || f.Object != c.object || f.Count != 1 {
				t.Errorf("%+v", f)
			}
			if f.Problem == "" || f.Cause == "" || len(f.Evidence) == 0 || len(f.Procedure) == 0 || !strings.Contains(strings.Join(f.Procedure, "\n"), "docs/") {
				t.Errorf("a part is missing: %+v", f)
			}
			text := strings.Join(append(append([]string{f.Problem, f.Cause}, f.Evidence...), f.Procedure...), "\n")
			for _, s := range c.says {
				if !strings.Contains(text, s) {
					t.Errorf("%q is not in:\n%s", s, text)
				}
			}
			if strings.Contains(text, placeholder) {
				t.Error(text)
			}
			for why, heal := range c.fine {
				o := healthy(6)
				c.spoil(o)
				heal(o)
				for _, f := range Examine(o, now) {
					if f.Rule == c.rule {
						t.Errorf("%s: %+v", why, f)
					}
				}
			}
			if len(c.fine) == 0 {
				t.Error("no case without the trouble")
			}
		})
	}
}
