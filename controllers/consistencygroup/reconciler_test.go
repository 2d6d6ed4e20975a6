package consistencygroup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	envtest.Main(m, "../../config/crd/bases")
}

// A group gets the condition and the event NotSupported, once, with the RBAC rules of the operator;
// it has no finalizer, and its spec stays for a release that supports it.
func TestGroupIsNotSupported(t *testing.T) {
	cfg := envtest.Config(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := runtime.NewScheme()
	ok(errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)))
	c, err := client.New(cfg, client.Options{Scheme: s})
	ok(err)
	team := envtest.Namespace(t, cfg) // not the operator's
	own, err := client.New(envtest.Operator(t, cfg, envtest.Namespace(t, cfg), "../../config/rbac"), client.Options{Scheme: s})
	ok(err)
	recorder := events.NewFakeRecorder(100)
	r := &Reconciler{Client: own, Version: "1.2.3", Events: recorder}
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "db"},
		Spec: v1alpha1.ConsistencyGroupSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}
	ok(c.Create(ctx, g))
	step := func(events int) *metav1.Condition {
		t.Helper()
		_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g)})
		ok(err)
		ok(c.Get(ctx, client.ObjectKeyFromObject(g), g))
		if n := len(recorder.Events); n != events {
			t.Errorf("%d events, not %d", n, events)
		}
		x := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady)
		if x == nil {
			t.Fatal("no condition")
		}
		return x
	}
	x := step(1)
	if x.Status != metav1.ConditionFalse || x.Reason != v1alpha1.ReasonNotSupported || !strings.Contains(x.Message, "1.2.3") || !strings.Contains(x.Message, "VolumeSnapshots") {
		t.Errorf("%+v", x)
	}
	if e := <-recorder.Events; !strings.Contains(e, "Warning NotSupported") || !strings.Contains(e, x.Message) {
		t.Errorf("event %q", e)
	}
	if len(g.Finalizers) != 0 || g.Spec.Selector.MatchLabels["app"] != "db" || g.Spec.Spread != "Nodes" {
		t.Errorf("%+v", g)
	}
	// Another reconcile, by this or another release without support, records no second event and
	// writes nothing unchanged.
	version := g.ResourceVersion
	step(0)
	if g.ResourceVersion != version {
		t.Error("another reconcile writes")
	}
	r.Version = "1.2.4"
	if x := step(0); !strings.Contains(x.Message, "1.2.4") {
		t.Errorf("%+v", x)
	}
	g.Spec.Spread = "None"
	ok(c.Update(ctx, g))
	if x := step(0); x.ObservedGeneration != g.Generation || g.Status.ObservedGeneration != g.Generation {
		t.Errorf("%+v of generation %d", x, g.Generation)
	}
	// After a release with support, the event is recorded again.
	meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady})
	ok(c.Status().Update(ctx, g))
	step(1)
	ok(c.Delete(ctx, g))
	if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g)}); err != nil || len(recorder.Events) != 1 {
		t.Errorf("%v, %d events", err, len(recorder.Events))
	}
}
