package kubectlgemel

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Each group that selects the claim is named, with what is wrong with it; that is no problem of the
// claim.
func TestWhyShowsTheGroupsOfAClaim(t *testing.T) {
	w := world()
	w["claim"].(*corev1.PersistentVolumeClaim).Labels = map[string]string{"app": "db"}
	group := func(name, app string, status v1alpha1.ConsistencyGroupStatus) {
		g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name}, Status: status}
		g.Spec.Selector.MatchLabels = map[string]string{"app": app}
		w[name] = g
	}
	group("db", "db", v1alpha1.ConsistencyGroupStatus{Conditions: is(v1alpha1.ConditionReady, false, "claim data is selected twice"), Balance: "a: 1, b: 0",
		Members: []v1alpha1.GroupMember{{Claim: "other", Reason: "no"}, {Claim: "data", Reason: "spread over the nodes"}}})
	group("new", "db", v1alpha1.ConsistencyGroupStatus{})
	group("web", "web", v1alpha1.ConsistencyGroupStatus{})
	var out bytes.Buffer
	if err := Why(t.Context(), clientOf(w), "app", "data", &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"ok      group db                 Because: claim data is selected twice; homes: a: 1, b: 0; this LUN: spread over the nodes\n",
		"ok      group new                the operator has not looked at it yet\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "group web") {
		t.Errorf("a group that does not select the claim:\n%s", out.String())
	}
}
