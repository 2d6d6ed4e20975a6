package charts

import (
	"slices"
	"strings"
	"testing"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// groupAPIs are what a cluster with the CRDs of group snapshots serves.
var groupAPIs = []string{"groupsnapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshot", "groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotClass",
	"groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotContent"}

const groupGate = "--feature-gates=CSIVolumeGroupSnapshot=true"

// Group snapshots are the sidecar's gate, its rights, and a class; without the value there is none
// of them, also where the CRDs are installed, and with the values of a release that knew none.
func TestGroupSnapshotsAreRequested(t *testing.T) {
	for _, x := range []struct {
		value any
		want  bool
	}{{true, true}, {false, false}, {nil, false}} {
		objs := mustRender(t, userspace(map[string]any{"sidecars.groupSnapshots": x.value, "storageClass.create": true, "storageClass.name": "fast"}), groupAPIs...)
		controller := one[*appsv1.Deployment](t, objs, "gemel-csi-controller").Spec.Template.Spec
		sidecar := container(t, &controller, "snapshotter")
		if slices.Contains(sidecar.Args, groupGate) != x.want || !slices.Contains(sidecar.Args, "--leader-election") {
			t.Errorf("%v: %q", x.value, sidecar.Args)
		}
		var got []string
		for _, r := range rights(one[*rbacv1.ClusterRole](t, objs, "gemel-csi-controller").Rules) {
			if strings.Contains(r, "groupsnapshot.storage.k8s.io/") {
				got = append(got, strings.TrimSpace(r))
			}
		}
		want := []string{"groupsnapshot.storage.k8s.io/volumegroupsnapshotclasses: get list watch", "groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents/status: update patch",
			"groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents: get list watch update patch"}
		if !x.want {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %q", x.value, got)
		}
		classes := all[*groupsnapshotv1.VolumeGroupSnapshotClass](objs)
		if (len(classes) == 1) != x.want || x.want && (classes[0].Name != "fast" || classes[0].Driver != v1alpha1.DriverName || len(classes[0].Parameters) != 0) {
			t.Errorf("%v: %+v", x.value, classes)
		}
	}
	if n := len(all[*groupsnapshotv1.VolumeGroupSnapshotClass](mustRender(t, userspace(map[string]any{"sidecars.groupSnapshots": true}), groupAPIs...))); n != 0 {
		t.Errorf("%d classes that were not requested", n)
	}
}

// Where the CRDs are missing, or are those of an earlier release, the chart is refused before the
// sidecar hangs, and says what to do.
func TestGroupSnapshotsNeedTheirCRDs(t *testing.T) {
	on := userspace(map[string]any{"sidecars.groupSnapshots": true})
	for i := range groupAPIs[1:] {
		_, err := render(t, on, slices.Delete(slices.Clone(groupAPIs), i+1, i+2)...)
		if err == nil || !strings.Contains(err.Error(), "sidecars.groupSnapshots: the cluster does not serve "+strings.TrimPrefix(groupAPIs[i+1], groupAPIs[0]+"/")+" of") {
			t.Errorf("without %s: %v", groupAPIs[i+1], err)
		}
	}
	if _, err := render(t, on, "groupsnapshot.storage.k8s.io/v1beta2", "groupsnapshot.storage.k8s.io/v1beta2/VolumeGroupSnapshot"); err == nil {
		t.Error("the CRDs of an earlier release are taken")
	}
	if _, err := render(t, userspace(map[string]any{"sidecars.groupSnapshots": true, "sidecars.snapshots": false}), groupAPIs...); err == nil || !strings.Contains(err.Error(), "set sidecars.snapshots too") {
		t.Error(err)
	}
	if _, err := render(t, userspace(map[string]any{"sidecars.groupSnapshots": "auto"}), groupAPIs...); err == nil || !strings.Contains(err.Error(), "groupSnapshots") {
		t.Error(err)
	}
}
