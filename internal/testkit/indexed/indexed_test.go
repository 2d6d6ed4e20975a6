package indexed

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
)

// A list by an index has what the index has, and a field without an index goes to the API server.
func TestListByIndex(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c := Client(fake.NewClientBuilder().WithScheme(s).WithObjects(
		&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.HostSpec{IQN: "iqn.A"}},
		&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.HostSpec{IQN: "iqn.b"}}).Build())
	list, err := index.Hosts(t.Context(), c, "IQN.a")
	if err != nil || len(list) != 1 || list[0].Name != "a" {
		t.Errorf("%d hosts, %v", len(list), err)
	}
	var all v1alpha1.HostList
	if err := c.List(t.Context(), &all); err != nil || len(all.Items) != 2 {
		t.Errorf("%d hosts without an index, %v", len(all.Items), err)
	}
	if err := c.List(t.Context(), &all, client.MatchingFields{"spec.none": "x"}); err == nil {
		t.Error("a field without an index was accepted")
	}
}
