package kubectlgemel

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func sized(name, size string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "db"}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: ptr.To("gemel"), VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}}}
}

func snapshotOf(name, claim string, group types.UID) *snapshotv1.VolumeSnapshot {
	s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
		Status: &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true), RestoreSize: ptr.To(resource.MustParse("2Gi")), VolumeGroupSnapshotName: ptr.To("nightly"),
			BoundVolumeSnapshotContentName: ptr.To("content-" + name)}}
	if group != "" {
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "groupsnapshot.storage.k8s.io/v1", Kind: "VolumeGroupSnapshot", Name: "nightly", UID: group}}
	}
	return s
}

// shop is a VolumeGroupSnapshot "nightly" of the claims data, log and old, of which old was deleted
// since; and snapshots that are not of it.
func shop() map[string]client.Object {
	single := snapshotOf("single", "data", "")
	single.Status.VolumeGroupSnapshotName = nil
	return map[string]client.Object{
		"group": &groupsnapshotv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nightly", UID: "u2"}, Status: &groupsnapshotv1.VolumeGroupSnapshotStatus{ReadyToUse: ptr.To(true)}},
		"data":  sized("data", "1Gi", corev1.ReadWriteMany, corev1.ReadOnlyMany), "log": sized("log", "3Gi", corev1.ReadWriteOncePod),
		"s2": snapshotOf("s2", "log", "u2"), "s1": snapshotOf("s1", "data", "u2"), "s3": snapshotOf("s3", "old", ""),
		"c3":      &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "content-s3"}, Spec: snapshotv1.VolumeSnapshotContentSpec{SourceVolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)}},
		"earlier": snapshotOf("earlier", "data", "u1"), "single": single,
	}
}

func restore(t *testing.T, c client.Client, g GroupRestore) (string, error) {
	t.Helper()
	var out bytes.Buffer
	g.Client, g.Namespace, g.Out = c, "shop", &out
	err := g.Run(t.Context(), "nightly")
	return out.String(), err
}

func claimsOf(t *testing.T, c client.Client) map[string]corev1.PersistentVolumeClaim {
	t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]corev1.PersistentVolumeClaim{}
	for _, p := range list.Items {
		out[p.Name] = p
	}
	return out
}

// Each snapshot of the group becomes one claim like its source.
func TestGroupRestoreMakesClaimsLikeTheirSources(t *testing.T) {
	c := clientOf(shop())
	out, err := restore(t, c, GroupRestore{Prefix: "was-", Suffix: "-1", StorageClass: "fast"})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"claim shop/was-data-1: 2Gi, [ReadWriteMany ReadOnlyMany], StorageClass fast, from VolumeSnapshot s1 of claim data\n",
		"claim shop/was-log-1: 3Gi, [ReadWriteOncePod], StorageClass fast, from VolumeSnapshot s2 of claim log\n",
		"claim shop/was-old-1: 2Gi, [ReadWriteOnce], StorageClass fast, from VolumeSnapshot s3 of claim old\n"} {
		if !strings.Contains(out, line) {
			t.Errorf("%q is not in:\n%s", line, out)
		}
	}
	got := claimsOf(t, c)
	if len(got) != 5 {
		t.Errorf("%d claims", len(got))
	}
	for name, want := range map[string]struct {
		snapshot, size string
		modes          []corev1.PersistentVolumeAccessMode
		mode           corev1.PersistentVolumeMode
	}{
		"was-data-1": {"s1", "2Gi", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany}, corev1.PersistentVolumeBlock},
		"was-log-1":  {"s2", "3Gi", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, corev1.PersistentVolumeBlock},
		"was-old-1":  {"s3", "2Gi", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeFilesystem},
	} {
		p := got[name].Spec
		size := p.Resources.Requests[corev1.ResourceStorage]
		if p.DataSource == nil || p.DataSource.Kind != "VolumeSnapshot" || p.DataSource.Name != want.snapshot || *p.DataSource.APIGroup != "snapshot.storage.k8s.io" ||
			size.String() != want.size || !slices.Equal(p.AccessModes, want.modes) || *p.VolumeMode != want.mode || *p.StorageClassName != "fast" || len(got[name].Labels) != 0 {
			t.Errorf("%s: %+v", name, got[name])
		}
	}
}

// Without --storage-class a claim has the class of its source.
func TestGroupRestoreKeepsTheClass(t *testing.T) {
	w := shop()
	delete(w, "s3")
	old := w["log"].(*corev1.PersistentVolumeClaim)
	old.Annotations, old.Spec.StorageClassName = map[string]string{corev1.BetaStorageClassAnnotation: "slow"}, nil
	c := clientOf(w)
	if _, err := restore(t, c, GroupRestore{Suffix: "-1"}); err != nil {
		t.Fatal(err)
	}
	got := claimsOf(t, c)
	if *got["data-1"].Spec.StorageClassName != "gemel" || *got["log-1"].Spec.StorageClassName != "slow" {
		t.Errorf("%+v", got)
	}
}

// What cannot be restored whole is refused with the reason, and no claim is made.
func TestGroupRestoreRefuses(t *testing.T) {
	group := func(w map[string]client.Object) *groupsnapshotv1.VolumeGroupSnapshot {
		return w["group"].(*groupsnapshotv1.VolumeGroupSnapshot)
	}
	for want, c := range map[string]struct {
		restore GroupRestore
		spoil   func(map[string]client.Object)
	}{
		"claim shop/data exists: set --prefix or --suffix":                      {GroupRestore{StorageClass: "fast"}, nil},
		"claim shop/log exists: set --prefix or --suffix":                       {GroupRestore{StorageClass: "fast"}, func(w map[string]client.Object) { delete(w, "s1") }},
		"VolumeSnapshot s3: claim old has no StorageClass, or does":             {GroupRestore{Suffix: "-1"}, nil},
		`volumegroupsnapshots.groupsnapshot.storage.k8s.io "nightly" not found`: {GroupRestore{}, func(w map[string]client.Object) { delete(w, "group") }},
		"nightly: it is not ready to use yet":                                   {GroupRestore{}, func(w map[string]client.Object) { group(w).Status = nil }},
		"nightly: it is not ready to use: no room": {GroupRestore{}, func(w map[string]client.Object) {
			group(w).Status = &groupsnapshotv1.VolumeGroupSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("no room")}}
		}},
		"it is being deleted": {GroupRestore{}, func(w map[string]client.Object) {
			group(w).DeletionTimestamp, group(w).Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"x/y"}
		}},
		"its VolumeSnapshot s1 is not ready to use yet": {GroupRestore{Suffix: "-1"}, func(w map[string]client.Object) {
			w["s1"].(*snapshotv1.VolumeSnapshot).Status.ReadyToUse = ptr.To(false)
		}},
		"no VolumeSnapshot belongs to it": {GroupRestore{Suffix: "-1"}, func(w map[string]client.Object) { delete(w, "s1"); delete(w, "s2"); delete(w, "s3") }},
		`"content-s3" not found`:          {GroupRestore{Suffix: "-1", StorageClass: "fast"}, func(w map[string]client.Object) { delete(w, "c3") }},
	} {
		w := shop()
		if c.spoil != nil {
			c.spoil(w)
		}
		k := clientOf(w)
		before := len(claimsOf(t, k))
		out, err := restore(t, k, c.restore)
		if !errors.Is(err, ErrRestore) || !strings.Contains(err.Error(), want) || out != "" || len(claimsOf(t, k)) != before {
			t.Errorf("%q is not in: %v\n%s", want, err, out)
		}
	}
}

// A claim that the API server refuses after the others were tried is reported with what was made.
func TestGroupRestoreSaysWhatWasMade(t *testing.T) {
	c := interceptor.NewClient(clientOf(shop()).(client.WithWatch), interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		var how client.CreateOptions
		if how.ApplyOptions(opts); o.GetName() == "log-1" && len(how.DryRun) == 0 {
			return errors.New("over the quota")
		}
		return c.Create(ctx, o, opts...)
	}})
	out, err := restore(t, c, GroupRestore{Suffix: "-1", StorageClass: "fast"})
	if !errors.Is(err, ErrRestore) || !strings.Contains(err.Error(), "1 of 3 claims were made") || !strings.Contains(err.Error(), "over the quota") ||
		!strings.HasPrefix(out, "claim shop/data-1: ") || strings.Count(out, "\n") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}
