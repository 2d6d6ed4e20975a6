package kubectlgemel

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// striped makes the claim's volume one over two LUNs, named one and two.
func striped() map[string]client.Object {
	w := world()
	lu := w["lun"].(*v1alpha1.LogicalUnit)
	lu.Spec.Striped = &v1alpha1.Striping{LUNs: 2, StripeBytes: 1 << 19}
	lu.Status.Owner = ""
	for i, name := range []string{"one", "two"} {
		w[name] = &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelStriped: lu.Name}},
			Spec:   v1alpha1.LogicalUnitSpec{Leg: &v1alpha1.Leg{Of: lu.Name, Number: int32(i), Striping: *lu.Spec.Striped}},
			Status: v1alpha1.LogicalUnitStatus{Conditions: is(v1alpha1.ConditionReady, true, "it serves"), Owner: []string{"a", "b"}[i], PreferredNode: "a"}}
	}
	return w
}

// Why shows each LUN of a striped volume with its owner and its home, and one that is not ready is
// the problem of the claim.
func TestWhyShowsTheLUNsOfAStripedVolume(t *testing.T) {
	w := striped()
	w["two"].(*v1alpha1.LogicalUnit).Status.Moves = []v1alpha1.LogicalUnitMove{{From: "a", To: "b", Reason: "Balance", Message: "two hot LUNs"}}
	var out bytes.Buffer
	if err := Why(t.Context(), clientOf(w), "app", "data", &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"ok      LUN 0                    owner a, home a\n", "ok      LUN 1                    owner b, home a\n", "LUN 1 moved", "two hot LUNs",
		"node a                   owner of 1 of the 2 LUNs", "node b                   owner of 1 of the 2 LUNs"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, &out)
		}
	}
	w = striped()
	w["two"].(*v1alpha1.LogicalUnit).Status.Conditions = is(v1alpha1.ConditionReady, false, "the LUN is gone")
	out.Reset()
	if err := Why(t.Context(), clientOf(w), "app", "data", &out); !errors.Is(err, ErrBroken) || !strings.Contains(out.String(), "BROKEN  LUN 1                    Because the LUN is gone") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// Top volumes sums up the LUNs of a striped volume, and shows every other LUN as it is.
func TestTopShowsVolumes(t *testing.T) {
	whole := world()["lun"].GetName()
	rows, text, err := (&busy{of: striped}).run(t, &Top{Of: "volumes"})
	if want := fmt.Sprintf("%s main-p0 2 a:1,b:1 400 50 2 4.7 MiB", whole); err != nil || len(rows) != 2 || strings.Join(rows[1][:9], " ") != want {
		t.Errorf("want %s: %v\n%s", want, err, text)
	}
	rows, text, err = (&busy{}).run(t, &Top{Of: "volumes"})
	if err != nil || len(rows) != 3 || strings.Join(rows[1][:5], " ") != "one main-p0 1 a 400" {
		t.Errorf("%v\n%s", err, text)
	}
}
