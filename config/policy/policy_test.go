package policy

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gemel-storage/gemel/dataplane/arbiter/lease"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m, "../crd/bases") }

// apply creates objects, and leaves those that are there.
func apply(t *testing.T, cfg *rest.Config, list []*unstructured.Unstructured, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	d := dynamic.NewForConfigOrDie(cfg)
	for _, u := range list {
		g := u.GroupVersionKind()
		res := map[string]string{"ValidatingAdmissionPolicy": "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
			"FlowSchema": "flowschemas"}[g.Kind]
		_, err := d.Resource(schema.GroupVersionResource{Group: g.Group, Version: g.Version, Resource: res}).Create(context.Background(), u, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("%s %s: %v", g.Kind, u.GetName(), err)
		}
	}
}

// rig is a namespace under the policies.
type rig struct {
	t   *testing.T
	cfg *rest.Config
	k   *kubernetes.Clientset
	ns  string
}

func newRig(t *testing.T) *rig {
	cfg := envtest.Config(t)
	list, err := Lease()
	apply(t, cfg, list, err)
	r := &rig{t: t, cfg: cfg, k: kubernetes.NewForConfigOrDie(cfg), ns: envtest.Namespace(t, cfg)}
	// The policies are in force a moment after they were made: when both refuse what they have to.
	r.create("probe", "p0")
	c := r.client("probe")
	if _, err := c.CompareAndSwap(context.Background(), "", record(5)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err1 := r.edit("probe", func(l *coordinationv1.Lease) { delete(l.Labels, lease.LabelPair) }, "All")
		err2 := r.as("nobody").CoordinationV1().Leases(r.ns).Delete(context.Background(), "probe", metav1.DeleteOptions{DryRun: []string{"All"}})
		if err1 != nil && err2 != nil && strings.Contains(err2.Error(), "targetpairs") {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatal(err1, err2)
		}
	}
}

// as is a user that may do everything with leases, and nothing else.
func (r *rig) as(account string) *kubernetes.Clientset {
	r.t.Helper()
	ctx := context.Background()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: account}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: account},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: r.ns, Name: account}}}
	if _, err := r.k.RbacV1().Roles(r.ns).Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		r.t.Fatal(err)
	}
	if _, err := r.k.RbacV1().RoleBindings(r.ns).Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		r.t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(envtest.As(r.cfg, r.ns, account))
}

func (r *rig) create(name, pairName string) {
	r.t.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{lease.LabelPair: pairName}}}
	if _, err := r.k.CoordinationV1().Leases(r.ns).Create(context.Background(), l, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) client(name string) *lease.Client {
	r.t.Helper()
	c, err := lease.New(r.cfg, lease.Options{Namespace: r.ns, Name: name, Cluster: "c", Pair: "p0", Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// edit changes the Lease as an administrator would.
func (r *rig) edit(name string, f func(l *coordinationv1.Lease), dryRun ...string) error {
	r.t.Helper()
	l, err := r.k.CoordinationV1().Leases(r.ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	f(l)
	_, err = r.k.CoordinationV1().Leases(r.ns).Update(context.Background(), l, metav1.UpdateOptions{DryRun: dryRun})
	return err
}

func member(n pair.Node, nonce uint64) pair.Member {
	return pair.Member{Node: n, Store: "store-" + n.String(), Incarnation: pair.Incarnation{Boot: "boot", Nonce: nonce}}
}

var (
	a, b   = member(pair.A, 1), member(pair.B, 1)
	a2, b2 = member(pair.A, 2), member(pair.B, 2)
)

func record(epoch uint64, members ...pair.Member) pair.Record {
	if len(members) == 0 {
		members = []pair.Member{a, b}
	}
	return pair.Record{Cluster: "c", Pair: "p0", Epoch: epoch, Generation: 1, Members: members}
}

func generation(g uint64, rec pair.Record) pair.Record {
	rec.Generation = g
	return rec
}

// Every transition of R2 and R2b passes; any other change is refused.
func TestOnlyTransitionsOfTheProtocolPass(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	for name, x := range map[string]struct {
		from, to pair.Record
		refusal  string // "": it passes
	}{
		"no-op successor":              {record(5), record(5), ""},
		"exclude b":                    {record(5), record(6, a), ""},
		"exclude a":                    {record(5), record(6, b), ""},
		"renew":                        {record(5, a), record(6, a2), ""},
		"yield":                        {record(5, a), record(6, b), ""},
		"readmit b":                    {record(5, a), record(6, a, b2), ""},
		"readmit a":                    {record(5, b), record(6, b, a2), ""},
		"force":                        {record(5, a), generation(2, record(6, b)), ""},
		"force over a rolled back one": {record(5), generation(3, record(40, b)), ""},
		"large numbers":                {record(1 << 63), record(1<<63+1, a), ""},

		"same epoch, other members":     {record(5), record(5, a), "one content"},
		"same epoch, other incarnation": {record(5, a), record(5, a2), "one content"},
		"same epoch, higher generation": {record(5), generation(2, record(5)), "one content"},
		"epoch falls":                   {record(5), record(4, a), "never fall"},
		"epoch jumps":                   {record(5), record(7, a), "one at a time"},
		"generation falls":              {generation(2, record(5)), record(6, a), "never fall"},
		"generation rises, epoch falls": {record(5), generation(2, record(4, a)), "never fall"},
		"forced with two members":       {record(5, a), generation(2, record(6)), "begins with one member"},
		"both stay, new incarnation":    {record(5), record(6, a2, b), "only a lone member"},
		"both stay, another chair":      {record(5), record(6, b, a), "only a lone member"},
		"readmitted by the one outside": {record(5, a), record(6, b, a), "only a lone member"},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			l := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			r.create(l, "p0")
			c := r.client(l)
			v, err := c.CompareAndSwap(ctx, "", x.from)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.CompareAndSwap(ctx, v, x.to)
			switch {
			case x.refusal == "" && err != nil:
				t.Error(err)
			case x.refusal != "" && (!errors.Is(err, lease.ErrDenied) || !strings.Contains(err.Error(), x.refusal)):
				t.Errorf("%v, want %q", err, x.refusal)
			}
			if rec, _, err := c.Get(ctx); err != nil || rec.Equal(&x.to) != (x.refusal == "") {
				t.Errorf("%+v %v", rec, err)
			}
		})
	}
}

// A user edits the object: the changes that the operator makes pass, changes of the record are
// refused.
func TestEditsOfTheRecordAreRefused(t *testing.T) {
	r := newRig(t)
	r.create("e", "p0")
	if err := r.edit("e", func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"x": "y"} }); err != nil {
		t.Fatalf("a bare Lease: %v", err)
	}
	if err := r.edit("e", func(l *coordinationv1.Lease) { l.Annotations[lease.AnnotationRecord] = "{}" }); err == nil {
		t.Error("a record that is none")
	}
	if _, err := r.client("e").CompareAndSwap(context.Background(), "", record(5)); err != nil {
		t.Fatal(err)
	}
	set := func(k, v string) func(*coordinationv1.Lease) {
		return func(l *coordinationv1.Lease) { l.Annotations[k] = v }
	}
	replace := func(old, by string) func(*coordinationv1.Lease) {
		return func(l *coordinationv1.Lease) {
			l.Annotations[lease.AnnotationRecord] = strings.Replace(l.Annotations[lease.AnnotationRecord], old, by, 1)
		}
	}
	drop := func(k string) func(*coordinationv1.Lease) {
		return func(l *coordinationv1.Lease) { delete(l.Annotations, k) }
	}
	for _, x := range []struct {
		what    string
		change  func(*coordinationv1.Lease)
		refusal string
	}{
		{"record taken away", drop(lease.AnnotationRecord), "cannot be taken away"},
		{"all taken away", func(l *coordinationv1.Lease) { l.Annotations = map[string]string{} }, "cannot be taken away"},
		{"epoch taken away", drop(lease.AnnotationEpoch), "must be numbers"},
		{"epoch alone", set(lease.AnnotationEpoch, "6"), "do not agree"},
		{"epoch is no number", set(lease.AnnotationEpoch, "x"), "must be numbers"},
		{"epoch with a zero in front", set(lease.AnnotationEpoch, "05"), "must be numbers"},
		{"generation alone", set(lease.AnnotationGeneration, "2"), "do not agree"},
		{"members alone", set(lease.AnnotationMembers, "a"), "do not agree"},
		{"members in another order", set(lease.AnnotationMembers, "b,a"), "do not agree"},
		{"no members", set(lease.AnnotationMembers, ""), "one of a, b"},
		{"record alone", replace(`"epoch":5`, `"epoch":6`), "do not agree"},
		{"cut off", replace(`"nonce":1}}]}`, `"nonce":1`), "do not agree"},
		{"another incarnation", replace(`"nonce":1`, `"nonce":9`), "one content"},
		{"another cluster", replace(`"cluster":"c"`, `"cluster":"d"`), "stays with its cluster"},
		{"another pair", replace(`"pair":"p0"`, `"pair":"p1"`), "do not agree"},
		{"no holder", func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }, "holderIdentity"},
		{"label taken away", func(l *coordinationv1.Lease) { l.Labels = nil }, "the label"},
		{"label of another pair", func(l *coordinationv1.Lease) { l.Labels[lease.LabelPair] = "p1" }, "the label"},
	} {
		if err := r.edit("e", x.change); err == nil || !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), x.refusal) {
			t.Errorf("%s: %v, want %q", x.what, err, x.refusal)
		}
	}
	if err := r.edit("e", func(l *coordinationv1.Lease) {
		l.Labels["x"], l.Annotations["x"], l.Finalizers = "y", "z", []string{"gemel.storage/x"}
	}); err != nil {
		t.Errorf("what is not of the record: %v", err)
	}
	if err := r.edit("e", func(l *coordinationv1.Lease) { l.Finalizers = nil }); err != nil {
		t.Error(err)
	}
	// A record without the label, of a time before the policy, gets it.
	r.create("old", "p0")
	if err := r.edit("old", func(l *coordinationv1.Lease) { l.Labels = nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client("old").CompareAndSwap(context.Background(), "", record(5)); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"p1": false, "p0": true} { // in either order
		if err := r.edit("old", func(l *coordinationv1.Lease) { l.Labels = map[string]string{lease.LabelPair: name} }); (err == nil) != ok {
			t.Errorf("label %s: %v", name, err)
		}
	}
	// The policy ignores Leases that do not belong to a pair.
	r.create("free", "p0")
	if err := r.edit("free", func(l *coordinationv1.Lease) { l.Labels = nil }); err != nil {
		t.Fatal(err)
	}
	if err := r.edit("free", func(l *coordinationv1.Lease) { l.Annotations = map[string]string{lease.AnnotationEpoch: "x"} }); err != nil {
		t.Error(err)
	}
}

func TestLeaseWithARecordIsNotDeleted(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	r.create("bare", "p0")
	r.create("full", "p0")
	if _, err := r.client("full").CompareAndSwap(ctx, "", record(1)); err != nil {
		t.Fatal(err)
	}
	k := r.as("nobody").CoordinationV1().Leases(r.ns)
	if err := k.Delete(ctx, "full", metav1.DeleteOptions{}); err == nil || !strings.Contains(err.Error(), "targetpairs") {
		t.Errorf("%v", err)
	}
	if err := k.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=full"}); err == nil {
		t.Error("all at once")
	}
	if err := k.Delete(ctx, "bare", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := r.k.CoordinationV1().Leases(r.ns).Delete(ctx, "full", metav1.DeleteOptions{}); err == nil || !strings.Contains(err.Error(), "give-up-record") {
		t.Errorf("an administrator, by mistake: %v", err)
	}
	operator := kubernetes.NewForConfigOrDie(envtest.Operator(t, r.cfg, r.ns, "../rbac")).CoordinationV1().Leases(r.ns)
	if err := operator.Delete(ctx, "full", metav1.DeleteOptions{DryRun: []string{"All"}}); err != nil {
		t.Errorf("the operator: %v", err)
	}
	if err := r.edit("full", func(l *coordinationv1.Lease) { l.Annotations["gemel.storage/give-up-record"] = "true" }); err != nil {
		t.Error(err)
	}
	if err := k.Delete(ctx, "full", metav1.DeleteOptions{}); err == nil || !strings.Contains(err.Error(), "targetpairs") {
		t.Errorf("a target: %v", err)
	}
	if err := r.k.CoordinationV1().Leases(r.ns).Delete(ctx, "full", metav1.DeleteOptions{}); err != nil {
		t.Errorf("an administrator: %v", err)
	}
}

func TestFlowSchema(t *testing.T) {
	cfg := envtest.Config(t)
	list, err := FlowSchema()
	apply(t, cfg, list, err)
	k := kubernetes.NewForConfigOrDie(cfg).FlowcontrolV1()
	s, err := k.FlowSchemas().Get(context.Background(), list[0].GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.PriorityLevelConfigurations().Get(context.Background(), s.Spec.PriorityLevelConfiguration.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
