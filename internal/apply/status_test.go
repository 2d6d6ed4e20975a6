package apply

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// What an API server makes of it is tested by those who call Status.
func TestStatusKeepsZeroAndLargeNumbers(t *testing.T) {
	type part struct {
		Name  string `json:"name"`
		Count int32  `json:"count"`
		None  string `json:"none,omitempty"`
	}
	var sent, to string
	var with client.SubResourceApplyOptions
	var fails error
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{SubResourceApply: func(_ context.Context, _ client.Client, sub string,
		o runtime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
		raw, err := json.Marshal(o)
		sent, to, with = string(raw), sub, client.SubResourceApplyOptions{}
		with.ApplyOpts(options)
		return errors.Join(err, fails)
	}})
	gvk := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "Host"}
	fields := map[string]any{"big": int64(9007199254740993), "parts": []part{{Name: "a"}}}
	if err := Status(t.Context(), c, "me", gvk, "w", fields); err != nil {
		t.Fatal(err)
	}
	// A number that is 0 is said, one that a float cannot hold is kept.
	if want := `{"apiVersion":"g/v1","kind":"Host","metadata":{"name":"w"},"status":{"big":9007199254740993,"parts":[{"count":0,"name":"a"}]}}`; sent != want && sent != want+"\n" {
		t.Errorf("%s\nwant %s", sent, want)
	}
	if to != "status" || with.FieldManager != "me" || with.Force == nil || !*with.Force {
		t.Errorf("to %q with %+v", to, with)
	}
	fails = errors.New("refused")
	if err := Status(t.Context(), c, "me", gvk, "w", fields); !errors.Is(err, fails) || err.Error() != "status of host w: refused" {
		t.Error(err)
	}
	if err := Status(t.Context(), c, "me", gvk, "w", map[string]any{"bad": func() {}}); err == nil {
		t.Error("a function was applied")
	}
}

// A status that was summed up from an older object is not written, neither is that of an object
// that has gone.
func TestPatchStatus(t *testing.T) {
	ctx := t.Context()
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	c := fake.NewClientBuilder().WithObjects(o).WithStatusSubresource(o).Build()
	read := func() *corev1.Node {
		n := &corev1.Node{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	patch := func(n *corev1.Node, phase corev1.NodePhase) error {
		before := n.DeepCopy()
		n.Status.Phase = phase
		return PatchStatus(ctx, c, n, before)
	}
	first, second := read(), read()
	if err := patch(first, corev1.NodeRunning); err != nil || read().Status.Phase != corev1.NodeRunning {
		t.Fatal(err, read().Status.Phase)
	}
	if err := patch(second, corev1.NodePending); !apierrors.IsConflict(err) || read().Status.Phase != corev1.NodeRunning {
		t.Error(err, read().Status.Phase)
	}
	if err := c.Delete(ctx, o); err != nil {
		t.Fatal(err)
	}
	if err := patch(first, corev1.NodePending); err != nil {
		t.Error(err)
	}
}
