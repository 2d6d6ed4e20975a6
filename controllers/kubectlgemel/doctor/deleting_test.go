package doctor

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func deletes(m func(*Objects) *metav1.ObjectMeta, d time.Duration) func(*Objects) {
	return func(o *Objects) {
		m(o).DeletionTimestamp, m(o).Finalizers = at(d), []string{v1alpha1.Finalizer}
	}
}

var deletionCases []trouble

func init() {
	for object, x := range map[string]struct {
		m    func(*Objects) *metav1.ObjectMeta
		says string
	}{
		"StorageCluster/main":                  {func(o *Objects) *metav1.ObjectMeta { return &o.Clusters[0].ObjectMeta }, "the StorageCluster has 2 pairs"},
		"TargetPair/main-p0":                   {func(o *Objects) *metav1.ObjectMeta { return &o.Pairs[0].ObjectMeta }, "the pair has 3 LUNs"},
		"LogicalUnit/lun-00000":                {func(o *Objects) *metav1.ObjectMeta { return &o.LUNs[0].ObjectMeta }, `kubectl patch lun lun-00000 --type=merge -p '{"spec":{"destroy":true}}'`},
		"LogicalUnitSnapshot/snap-00000":       {func(o *Objects) *metav1.ObjectMeta { return &o.Snapshots[0].ObjectMeta }, "kubectl edit lunsnap snap-00000"},
		"LogicalUnitGroupSnapshot/group-00000": {func(o *Objects) *metav1.ObjectMeta { return &o.Groups[0].ObjectMeta }, "kubectl edit lungroupsnap group-00000"},
		"Host/worker-1":                        {func(o *Objects) *metav1.ObjectMeta { return &o.Hosts[0].ObjectMeta }, "Gemel sets none on Hosts"},
	} {
		deletionCases = append(deletionCases, trouble{object, "DeletionWaits", Warning, object, deletes(x.m, time.Hour), map[string]func(*Objects){
			"gone": func(o *Objects) { x.m(o).DeletionTimestamp = nil }, "not for long": deletes(x.m, 14*time.Minute),
		}, []string{x.says, "finalizers: gemel.storage/data"}})
	}
}

func TestDeletions(t *testing.T) { check(t, deletionCases) }

// The message of the object says what it waits for.
func TestDeletionSaysWhatTheObjectSays(t *testing.T) {
	o := healthy(6)
	o.LUNs[0].DeletionTimestamp, o.LUNs[0].Spec.Destroy = at(time.Hour), true
	lunIs("Ready", false, "InUse", "a host is mapped", time.Hour)(o)
	o.Snapshots[0].DeletionTimestamp, o.Snapshots[0].Spec.Destroy = at(time.Hour), true
	snapshotIs(true, v1alpha1.ReasonDataKept, "the snapshot is kept", time.Hour)(o)
	o.LUNs[1].DeletionTimestamp = at(time.Hour)
	list := Examine(o, now)
	if len(list) != 3 || len(list[1].Evidence) != 1 {
		t.Fatalf("%+v", list)
	}
	list = []Finding{list[0], list[2]}
	if len(list) != 2 || !strings.Contains(list[0].Evidence[1], "InUse: a host is mapped") || !strings.Contains(list[1].Evidence[1], "the snapshot is kept") || strings.Contains(list[0].Procedure[0], "destroy the data") {
		t.Errorf("%+v", list)
	}
}
