package hostobject

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestKeysAreChecked(t *testing.T) {
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint("example.com/k", i))
		}
		return out
	}
	for _, c := range []struct {
		keys []string
		says string // "": allowed
	}{
		{nil, ""},
		{[]string{"rack", "topology.example.com/row", "topology.kubernetes.io/zone"}, ""},
		{many(16), ""},
		{many(17), "17 keys: at most 16"},
		{[]string{"a b"}, `"a b" is not the key of a label`},
		{[]string{""}, `"" is not the key of a label`},
		{[]string{"a/b/c"}, `"a/b/c" is not the key`},
		{[]string{strings.Repeat("x", 64)}, "63"},
		{[]string{"kubernetes.io/hostname"}, "every worker"},
		{[]string{"csi.gemel.storage/reach"}, "belongs to the driver"},
		{[]string{"rack", "Rack"}, "Rack is named twice"},
	} {
		if err := CheckKeys(c.keys); (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.keys, err)
		}
	}
}

func TestSegmentsAreLabelsOfTheNode(t *testing.T) {
	worker := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	c := fake.NewClientBuilder().WithObjects(worker("w1", map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", corev1.LabelHostname: "w1", "rack": "7", "row": "", "x": "y"}),
		worker("w2", nil)).Build()
	for _, x := range []struct {
		worker string
		keys   []string
		want   map[string]string
	}{
		{"w1", nil, map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}},
		{"w1", []string{"rack", "row", "none"}, map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "rack": "7"}},
		{"w2", []string{"rack"}, map[string]string{}},
	} {
		if got, err := Segments(t.Context(), c, x.worker, x.keys); err != nil || !maps.Equal(got, x.want) {
			t.Errorf("%+v: %v, %v", x, got, err)
		}
	}
	if _, err := Segments(t.Context(), c, "w3", nil); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "--node-name") {
		t.Error(err)
	}
}
