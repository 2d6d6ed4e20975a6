package apply

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func configMap(t *testing.T, s *runtime.Scheme, name, value string) *unstructured.Unstructured {
	t.Helper()
	u, err := Typed(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"key": value}}, s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// What is as it was applied is not applied again; what the caller, or somebody else, has changed
// is, and so is everything of a call that has failed in part.
func TestMemoryAppliesWhatHasChanged(t *testing.T) {
	for name, whole := range map[string][]client.Object{"by its metadata": nil, "as a whole": {&corev1.ConfigMap{}}} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			if err := corev1.AddToScheme(s); err != nil {
				t.Fatal(err)
			}
			applied, fail := 0, ""
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(s).Build(), interceptor.Funcs{
				Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
					applied++
					if x, ok := o.(interface{ GetName() string }); ok && x.GetName() == fail {
						return errors.New("it does not work")
					}
					return c.Apply(ctx, o, opts...)
				}})
			m := &Memory{Client: c, Manager: "test", Whole: whole}
			apply := func(what, a, b string, want int) {
				t.Helper()
				applied = 0
				if err := m.Objects(t.Context(), configMap(t, s, "a", a), configMap(t, s, "b", b)); (err != nil) != (fail != "") {
					t.Fatalf("%s: %v", what, err)
				}
				if applied != want {
					t.Errorf("%s: %d objects applied, and %d were expected", what, applied, want)
				}
			}
			apply("at first", "1", "1", 2)
			apply("again", "1", "1", 0)
			apply("one has changed", "1", "2", 1)
			apply("again", "1", "2", 0)

			got := &corev1.ConfigMap{}
			key := client.ObjectKey{Namespace: "default", Name: "a"}
			if err := c.Get(t.Context(), key, got); err != nil {
				t.Fatal(err)
			}
			got.Data["key"] = "of somebody else"
			if err := c.Update(t.Context(), got); err != nil {
				t.Fatal(err)
			}
			apply("somebody has changed one", "1", "2", 1)
			if err := c.Get(t.Context(), key, got); err != nil || got.Data["key"] != "1" {
				t.Errorf("it was not put back: %q, %v", got.Data["key"], err)
			}
			if err := c.Delete(t.Context(), got); err != nil {
				t.Fatal(err)
			}
			apply("somebody has deleted one", "1", "2", 1)

			fail = "a"
			apply("one fails", "3", "3", 2)
			fail = ""
			apply("after that", "3", "3", 2)
			apply("again", "3", "3", 0)
		})
	}
}
