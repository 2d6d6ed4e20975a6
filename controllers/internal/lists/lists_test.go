package lists

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestWholeListsAreCounted(t *testing.T) {
	c := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, "x", func(client.Object) []string { return nil }).Build()
	pods := func() float64 { return testutil.ToFloat64(whole.WithLabelValues("Pod")) }
	for _, x := range []struct {
		name string
		opts []client.ListOption
		want float64
	}{
		{"all", nil, 1},
		{"of a namespace", []client.ListOption{client.InNamespace("a")}, 1},
		{"an empty selector", []client.ListOption{client.MatchingLabelsSelector{Selector: labels.Everything()}}, 1},
		{"by labels", []client.ListOption{client.MatchingLabels{"a": "b"}}, 0},
		{"by a field", []client.ListOption{client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("x", "y")}}, 0},
	} {
		for _, r := range []client.Reader{Client(c), Reader(c)} {
			before := pods()
			if err := r.List(t.Context(), &corev1.PodList{}, x.opts...); err != nil {
				t.Fatal(err)
			}
			if got := pods() - before; got != x.want {
				t.Errorf("%s: %v", x.name, got)
			}
		}
	}
	if got := kindOf(&metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "SecretList"}}); got != "Secret" {
		t.Error(got)
	}
}
