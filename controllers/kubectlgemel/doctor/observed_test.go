package doctor

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// changed is a spec that was changed a time ago, on which no controller has acted.
func changed(m func(*Objects) *metav1.ObjectMeta, d time.Duration) func(*Objects) {
	return func(o *Objects) { m(o).Generation = 2; writtenBefore(m(o), "", d) }
}

var observedCases []trouble

func init() {
	for object, m := range map[string]func(*Objects) *metav1.ObjectMeta{
		"StorageCluster/main":                  func(o *Objects) *metav1.ObjectMeta { return &o.Clusters[0].ObjectMeta },
		"TargetPair/main-p0":                   func(o *Objects) *metav1.ObjectMeta { return &o.Pairs[0].ObjectMeta },
		"LogicalUnit/lun-00000":                func(o *Objects) *metav1.ObjectMeta { return &o.LUNs[0].ObjectMeta },
		"LogicalUnitSnapshot/snap-00000":       func(o *Objects) *metav1.ObjectMeta { return &o.Snapshots[0].ObjectMeta },
		"LogicalUnitGroupSnapshot/group-00000": func(o *Objects) *metav1.ObjectMeta { return &o.Groups[0].ObjectMeta },
		"Host/worker-1":                        func(o *Objects) *metav1.ObjectMeta { return &o.Hosts[0].ObjectMeta },
	} {
		observedCases = append(observedCases, trouble{object, "NotObserved", Warning, object, changed(m, time.Hour), map[string]func(*Objects){
			"gone": func(o *Objects) { m(o).Generation = 1 }, "not for long": changed(m, 9*time.Minute), "it is being deleted": func(o *Objects) { m(o).DeletionTimestamp = at(0) },
		}, []string{"generation 2, and its status is of generation 1"}})
	}
	observedCases = append(observedCases,
		trouble{"no condition", "NotObserved", Warning, "LogicalUnit/lun-00000", func(o *Objects) { o.LUNs[0].Status.Conditions = nil }, map[string]func(*Objects){
			"not for long": func(o *Objects) { o.LUNs[0].ObjectMeta = made("lun-00000", 9*time.Minute) }}, []string{"no condition Ready yet"}})
}

func TestObserved(t *testing.T) { check(t, observedCases) }
