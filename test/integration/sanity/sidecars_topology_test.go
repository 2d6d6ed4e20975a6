package sanity

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// zones of a node affinity, or of a LUN.
func zonesOf(affinity *corev1.VolumeNodeAffinity) (out []string) {
	if affinity == nil {
		return nil
	}
	for _, t := range affinity.Required.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			out = append(out, e.Key+" "+string(e.Operator)+" "+strings.Join(e.Values, "/"))
		}
	}
	slices.Sort(out)
	return out
}

// restrictsWorkers makes volumes of classes and of a pool that only some workers may use. The other
// worker, in another zone, is an object only. segments are those of this worker.
func (e *env) restrictsWorkers(c client.Client, create func(...client.Object), segments map[string]string) {
	e.t.Helper()
	const other, zoneKey = "other", corev1.LabelTopologyZone
	labels := maps.Clone(segments)
	labels[zoneKey] = "z2"
	create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other, Labels: labels}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: other}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: v1alpha1.DriverName, NodeID: "iqn.2026-11.storage.gemel:other",
			TopologyKeys: slices.Collect(maps.Keys(segments))}}}})
	class := func(name string, mode storagev1.VolumeBindingMode, zones ...string) {
		o := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: v1alpha1.DriverName, Parameters: map[string]string{"cluster": operator.Cluster}, VolumeBindingMode: &mode}
		if len(zones) > 0 {
			o.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zoneKey, Values: zones}}}}
		}
		create(o)
	}
	class("open-now", storagev1.VolumeBindingImmediate)
	class("z1-now", storagev1.VolumeBindingImmediate, "z1")
	class("z123-later", storagev1.VolumeBindingWaitForFirstConsumer, "z1", "z2", "z3")
	claimOf := func(name, class, worker string) *corev1.PersistentVolumeClaim {
		o := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": v1alpha1.DriverName}},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("320Mi")}}}}
		if worker != "" {
			o.Annotations["volume.kubernetes.io/selected-node"] = worker
		}
		create(o)
		return o
	}
	// made checks the workers of a volume, and removes it.
	made := func(claim *corev1.PersistentVolumeClaim, zones ...string) {
		e.t.Helper()
		var pv corev1.PersistentVolume
		e.ok(harness.Wait(e.ctx, "the volume "+claim.Name+" is made", func() (bool, string) {
			err := c.Get(e.ctx, client.ObjectKey{Name: "pvc-" + string(claim.UID)}, &pv)
			return err == nil, fmt.Sprint(err)
		}))
		var want []string
		for _, z := range zones {
			want = append(want, zoneKey+" In "+z)
		}
		var lu v1alpha1.LogicalUnit
		e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, &lu))
		if got := zonesOf(pv.Spec.NodeAffinity); !slices.Equal(got, want) || len(lu.Spec.AccessibleFrom) != len(zones) || (lu.Annotations[v1alpha1.AnnotationRestricted] == "") != (len(zones) == 0) {
			e.t.Errorf("%s: %q, LUN %+v %q", claim.Name, got, lu.Spec.AccessibleFrom, lu.Annotations[v1alpha1.AnnotationRestricted])
		}
		e.ok(c.Delete(e.ctx, claim))
		_, err := e.plugin.Controller.DeleteVolume(e.ctx, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
		e.ok(err)
	}
	made(claimOf("open-now", "open-now", ""))
	made(claimOf("z1-now", "z1-now", ""), "z1")
	made(claimOf("z123-later", "z123-later", nodeName), "z1", "z2", "z3")
	made(claimOf("z123-other", "z123-later", other), "z1", "z2", "z3")

	// capacities of the class "late", by zone.
	capacities := func() map[string]storagev1.CSIStorageCapacity {
		e.t.Helper()
		var list storagev1.CSIStorageCapacityList
		e.ok(c.List(e.ctx, &list))
		out := map[string]storagev1.CSIStorageCapacity{}
		for _, x := range list.Items {
			if x.StorageClassName == "late" {
				out[x.NodeTopology.MatchLabels[zoneKey]] = x
			}
		}
		return out
	}
	published := func(what string, empty bool) {
		e.t.Helper()
		e.ok(harness.Wait(e.ctx, what, func() (bool, string) {
			m := capacities()
			return len(m) == 2 && !m["z1"].Capacity.IsZero() && m["z2"].Capacity.IsZero() == empty && m["z2"].MaximumVolumeSize.IsZero() == empty, fmt.Sprintf("%+v", m)
		}))
	}
	restrict := func(terms []v1alpha1.TopologyTerm) {
		e.t.Helper()
		e.ok(harness.Wait(e.ctx, "the pool is changed", func() (bool, string) {
			var cluster v1alpha1.StorageCluster
			e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: operator.Cluster}, &cluster))
			cluster.Spec.Pools[0].AccessibleFrom = terms
			err := e.api.Update(e.ctx, &cluster)
			return err == nil, fmt.Sprint(err)
		}))
	}
	published("every worker has capacity", false)
	restrict([]v1alpha1.TopologyTerm{{MatchLabels: map[string]v1alpha1.TopologyValue{zoneKey: "z1"}}})
	published("the other worker has none", true)
	before := capacities()
	made(claimOf("pool-now", "open-now", ""), "z1")
	made(claimOf("pool-later", "late", nodeName), "z1")
	made(claimOf("pool-both", "z123-later", nodeName), "z1") // and not z2, which does not reach the pool

	// The scheduler is asked for another worker, with the reason.
	wrong := claimOf("pool-wrong", "late", other)
	e.ok(harness.Wait(e.ctx, "the worker is given up", func() (bool, string) {
		e.ok(c.Get(e.ctx, client.ObjectKeyFromObject(wrong), wrong))
		return wrong.Annotations["volume.kubernetes.io/selected-node"] == "", fmt.Sprint(wrong.Annotations)
	}))
	e.ok(harness.Wait(e.ctx, "an event says why", func() (bool, string) {
		var events corev1.EventList
		e.ok(c.List(e.ctx, &events, client.InNamespace("default")))
		for _, x := range events.Items {
			if x.InvolvedObject.Name == wrong.Name && strings.Contains(x.Message, "worker other does not have the labels "+zoneKey+"=z1") && strings.Contains(x.Message, "accessibleFrom") {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d events", len(events.Items))
	}))
	var units v1alpha1.LogicalUnitList
	e.ok(e.api.List(e.ctx, &units))
	for _, lu := range units.Items {
		if lu.Spec.Volume != nil && lu.Spec.Volume.PVC == wrong.Name {
			e.t.Errorf("a LUN was made: %+v", lu)
		}
	}
	e.ok(c.Get(e.ctx, client.ObjectKeyFromObject(wrong), wrong))
	wrong.Annotations["volume.kubernetes.io/selected-node"] = nodeName // as the scheduler does
	e.ok(c.Update(e.ctx, wrong))
	made(wrong, "z1")

	// Objects of a segment are changed, not made again (decision 0019).
	time.Sleep(3 * time.Second)
	for zone, x := range capacities() {
		if x.UID != before[zone].UID {
			e.t.Errorf("%s: %+v was made again: %+v", zone, before[zone], x)
		}
	}
	restrict(nil)
	published("every worker has capacity again", false)
	made(claimOf("pool-open", "late", other))
}
