package claims

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func lun(ns, name string) *v1alpha1.LogicalUnit {
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Volume: &v1alpha1.VolumeInfo{Name: "pv-" + name, Namespace: ns}}}
}

// Every namespace has its turn before one has a second, and the order does not depend on that of
// the list.
func TestEveryNamespaceHasItsTurn(t *testing.T) {
	var list []*v1alpha1.LogicalUnit
	for i := range 1000 {
		list = append(list, lun("big", fmt.Sprintf("a-%04d", i)))
	}
	for i := range Limit - 2 {
		list = append(list, lun(fmt.Sprintf("small-%d", i), fmt.Sprintf("z-%02d", i)))
	}
	list = append(list, &v1alpha1.LogicalUnit{}, &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Volume: &v1alpha1.VolumeInfo{}}})
	by := map[string]int{}
	first := choose(list)
	for _, lu := range first {
		by[lu.Spec.Volume.Namespace]++
	}
	if len(first) != Limit || by["big"] != 2 || len(by) != Limit-1 {
		t.Errorf("%v", by)
	}
	slices.Reverse(list)
	if !slices.Equal(choose(list), first) {
		t.Error("the choice depends on the order of the list")
	}
}

// Only bound claims of this driver's volume have an event, and its text is not too long.
func TestClaimsOfOtherVolumesAreLeftOut(t *testing.T) {
	volume := func(name, driver, handle string, phase corev1.PersistentVolumePhase) client.Object {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "app", Name: "claim-" + name, UID: types.UID("uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}},
			Status: corev1.PersistentVolumeStatus{Phase: phase}}
	}
	c := fake.NewClientBuilder().WithObjects(volume("good", v1alpha1.DriverName, "good", corev1.VolumeBound), volume("other", "x", "other", corev1.VolumeBound),
		volume("taken", v1alpha1.DriverName, "else", corev1.VolumeBound), volume("free", v1alpha1.DriverName, "free", corev1.VolumeReleased)).Build()
	rec := events.NewFakeRecorder(10)
	list := []*v1alpha1.LogicalUnit{lun("app", "good"), lun("app", "other"), lun("app", "taken"), lun("app", "free"), lun("app", "gone")}
	e := Event{Type: corev1.EventTypeWarning, Reason: "Lost", Action: "Look", Note: strings.Repeat("%d ä", 1000)}
	if told := Record(t.Context(), c, rec, list, e); told != 1 || len(rec.Events) != 1 {
		t.Fatalf("%d told, %d events", told, len(rec.Events))
	}
	if got := <-rec.Events; !strings.HasPrefix(got, "Warning Lost %d ä%d ä") || len(got) > 1024 || !utf8.ValidString(got) {
		t.Error(got)
	}
	// The claim of a striped volume gets one event, whichever of its LUNs the event concerns.
	legs := []*v1alpha1.LogicalUnit{lun("app", "good"), lun("app", "good")}
	for i, leg := range legs {
		leg.Name, leg.Spec.Leg = v1alpha1.LegName("good", i+1), &v1alpha1.Leg{Of: "good"}
	}
	for _, list := range [][]*v1alpha1.LogicalUnit{legs, legs[1:], append(legs, list[0])} {
		if told := Record(t.Context(), c, rec, list, e); told != 1 || len(rec.Events) != 1 {
			t.Fatalf("of a striped volume: %d told, %d events", told, len(rec.Events))
		}
		<-rec.Events
	}
	if ref := claimOf(t.Context(), c, list[0]); ref.Kind != "PersistentVolumeClaim" || ref.Namespace != "app" || ref.Name != "claim-good" || ref.UID != "uid-good" {
		t.Errorf("%+v", ref)
	}
}
