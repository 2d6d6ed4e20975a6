package chap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/indexed"
)

const (
	iqnA = "iqn.2026-11.storage.gemel:node.a"
	iqnB = "iqn.2026-11.storage.gemel:node.b"
)

type fixture struct {
	*testing.T
	c    client.Client
	k    *Keeper
	made []string
}

func setup(t *testing.T, mode string, more ...client.Object) *fixture {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t}
	f.c = indexed.Client(fake.NewClientBuilder().WithScheme(s).WithObjects(append(more,
		&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1alpha1.StorageClusterSpec{Security: v1alpha1.Security{CHAP: mode}}},
		&v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.TargetPairSpec{Cluster: "c"}},
		&v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: v1alpha1.TargetPairSpec{Cluster: "c"}})...).Build())
	f.k = &Keeper{Client: f.c, Live: f.c, Namespace: "ns", Made: func(h *v1alpha1.Host, pair string) { f.made = append(f.made, h.Name+" "+pair) }}
	return f
}

func host(name, iqn string) *v1alpha1.Host {
	return &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HostSpec{IQN: iqn}}
}

// lun of pair p that is mapped to a host with credentials of a user.
func lun(name, iqn, user string) *v1alpha1.LogicalUnit {
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: "p"},
		Hosts: []v1alpha1.HostAccess{{IQN: iqn}}}, Status: v1alpha1.LogicalUnitStatus{Hosts: []v1alpha1.HostMapping{{IQN: iqn, CHAPUser: user}}}}
}

func (f *fixture) get(pair, iqn string) *Credentials {
	f.Helper()
	c, err := f.k.For(f.Context(), pair, iqn)
	if err != nil {
		f.Fatal(err)
	}
	return c
}

func (f *fixture) left() int {
	f.Helper()
	var l corev1.SecretList
	if err := f.c.List(f.Context(), &l); err != nil {
		f.Fatal(err)
	}
	return len(l.Items)
}

// Credentials are created once for each worker and pair, and never shared.
func TestCredentialsAreCreatedOncePerWorkerAndPair(t *testing.T) {
	f := setup(t, v1alpha1.CHAPMutual, host("a", iqnA), host("b", strings.ToUpper(iqnB)))
	c := f.get("p", iqnA)
	if again := f.get("p", strings.ToUpper(iqnA)); *again != *c {
		t.Errorf("%v, then %v", c, again)
	}
	seen := map[string]bool{}
	for _, x := range []*Credentials{c, f.get("p", iqnB), f.get("q", iqnA)} {
		for _, s := range []string{x.User, x.Secret, x.MutualUser, x.MutualSecret} {
			if seen[s] || len(s) < 10 {
				t.Errorf("%q", s)
			}
			seen[s] = true
		}
		if text := fmt.Sprintf("%v %+v %#v", x, *x, x); strings.Contains(text, x.Secret) || strings.Contains(text, x.MutualSecret) {
			t.Error(text)
		}
	}
	if fmt.Sprint(f.made) != "[a p b p a q]" {
		t.Error(f.made)
	}
	var s corev1.Secret
	if err := f.c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: SecretName("p", iqnA)}, &s); err != nil {
		t.Fatal(err)
	}
	if pair, iqn, ok := OfPair(&s); pair != "p" || iqn != iqnA || !ok || s.Labels[v1alpha1.LabelCluster] != "c" || !*s.Immutable {
		t.Errorf("%+v", s.ObjectMeta)
	}
}

// The LUNs that a worker has of the pair decide about CHAP; the spec decides for a worker without
// LUNs.
func TestAttachedLUNsDecideAboutCHAP(t *testing.T) {
	for name, x := range map[string]struct {
		mode string
		luns []client.Object
		want bool
	}{
		"mutual":               {v1alpha1.CHAPMutual, nil, true},
		"no word":              {"", nil, true},
		"none":                 {v1alpha1.CHAPNone, nil, false},
		"none, attached with":  {v1alpha1.CHAPNone, []client.Object{lun("l", iqnA, "u")}, true},
		"attached without":     {v1alpha1.CHAPMutual, []client.Object{lun("l", iqnA, "")}, false},
		"another is":           {v1alpha1.CHAPMutual, []client.Object{lun("l", iqnB, "")}, true},
		"both, mutual":         {v1alpha1.CHAPMutual, []client.Object{lun("l", iqnA, ""), lun("m", iqnA, "u")}, true},
		"both, none":           {v1alpha1.CHAPNone, []client.Object{lun("l", iqnA, ""), lun("m", iqnA, "u")}, false},
		"none, LUN elsewhere":  {v1alpha1.CHAPNone, []client.Object{&v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "x"}}}, false},
		"attached to two ways": {v1alpha1.CHAPMutual, []client.Object{lun("l", iqnA, "u"), lun("m", iqnB, "")}, true},
	} {
		f := setup(t, x.mode, append(x.luns, host("a", iqnA))...)
		if c := f.get("p", iqnA); (c != nil) != x.want {
			t.Errorf("%s: %v", name, c)
		}
	}
}

func TestForNamesTheObjectInErrors(t *testing.T) {
	bad := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: SecretName("p", iqnA), Labels: Labels("p")}, Data: map[string][]byte{"user": []byte("u"), "secret": []byte("short")}}
	for name, x := range map[string]struct {
		objs []client.Object
		want error
		says string
	}{
		"nobody":  {nil, ErrUnknown, iqnA},
		"two":     {[]client.Object{host("a", iqnA), host("z", strings.ToUpper(iqnA))}, ErrTwice, "a and z"},
		"damaged": {[]client.Object{host("a", iqnA), bad}, ErrDamaged, "ns/" + SecretName("p", iqnA)},
	} {
		f := setup(t, v1alpha1.CHAPMutual, x.objs...)
		if _, err := f.k.For(t.Context(), "p", iqnA); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) || strings.Contains(err.Error(), "short") {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := setup(t, v1alpha1.CHAPMutual, host("a", iqnA))
	if err := f.c.Delete(t.Context(), &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.k.For(t.Context(), "p", iqnA); !errors.Is(err, ErrCluster) {
		t.Error(err)
	}
}

// A new worker with the iSCSI name of a former one gets new credentials, unless the former one has
// LUNs of the pair.
func TestNewWorkerOfANameGetsNewCredentials(t *testing.T) {
	f := setup(t, v1alpha1.CHAPMutual, host("a", iqnA))
	old := f.get("p", iqnA)
	if err := errors.Join(f.c.Delete(t.Context(), host("a", iqnA)), f.c.Create(t.Context(), host("z", iqnA))); err != nil {
		t.Fatal(err)
	}
	if c := f.get("p", iqnA); c.Host != "z" || c.User == old.User || c.Secret == old.Secret {
		t.Errorf("%v after %v", c, old)
	}
	if err := errors.Join(f.c.Delete(t.Context(), host("z", iqnA)), f.c.Create(t.Context(), host("a", iqnA)), f.c.Create(t.Context(), lun("l", iqnA, "u"))); err != nil {
		t.Fatal(err)
	}
	if c := f.get("p", iqnA); c.Host != "z" {
		t.Errorf("%v was replaced although it has LUNs", c)
	}
}

// Concurrent calls create one set of credentials, even if the cache lacks it.
func TestConcurrentCallsCreateOneSet(t *testing.T) {
	f := setup(t, v1alpha1.CHAPMutual, host("a", iqnA))
	first := f.get("p", iqnA)
	f.k.Client = blind{f.c}
	if c := f.get("p", iqnA); *c != *first {
		t.Errorf("%v, then %v", first, c)
	}
}

// blind is a cache without Secrets.
type blind struct{ client.Client }

func (b blind) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Secret); ok {
		key.Name += "-none"
	}
	return b.Client.Get(ctx, key, o, opts...)
}

func TestSweepDeletesUnusedCredentials(t *testing.T) {
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gemel-p-a", Labels: map[string]string{v1alpha1.LabelPair: "p"}}}
	f := setup(t, v1alpha1.CHAPMutual, host("a", iqnA), host("b", iqnB), foreign)
	var c v1alpha1.StorageCluster
	if err := f.c.Get(t.Context(), client.ObjectKey{Name: "c"}, &c); err != nil {
		t.Fatal(err)
	}
	sweep := func(want int) {
		t.Helper()
		if err := f.k.Sweep(t.Context(), &c, "p"); err != nil || f.left() != want {
			t.Errorf("%d Secrets are left, want %d: %v", f.left(), want, err)
		}
	}
	f.get("p", iqnA)
	f.get("p", iqnB)
	f.get("q", iqnA)
	sweep(4)
	for _, o := range []client.Object{host("b", iqnB), host("a", iqnA)} {
		if err := f.c.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.c.Create(t.Context(), lun("l", iqnA, "u")); err != nil {
		t.Fatal(err)
	}
	sweep(3) // b's are deleted; a still has a LUN
	if err := f.c.Delete(t.Context(), lun("l", iqnA, "u")); err != nil {
		t.Fatal(err)
	}
	sweep(2)
	if err := f.c.Create(t.Context(), host("a", iqnA)); err != nil {
		t.Fatal(err)
	}
	f.get("p", iqnA)
	sweep(3)
	c.Spec.Security.CHAP = v1alpha1.CHAPNone
	now := time.Now()
	f.k.Grace, f.k.Now = time.Minute, func() time.Time { return now }
	sweep(3)
	now = now.Add(50 * time.Second)
	c.Spec.Security.CHAP = v1alpha1.CHAPMutual // needed again: the grace time starts over
	sweep(3)
	c.Spec.Security.CHAP = v1alpha1.CHAPNone
	now = now.Add(50 * time.Second)
	sweep(3)
	now = now.Add(50 * time.Second)
	sweep(3)
	now = now.Add(20 * time.Second)
	sweep(2)
	if err := f.k.Remove(t.Context(), "q"); err != nil || f.left() != 1 {
		t.Errorf("%d Secrets are left: %v", f.left(), err)
	}
}

// A worker without a LUN of a pair keeps its credentials there for the spare time, which begins
// again when it has had one.
func TestSweepDeletesSpareCredentials(t *testing.T) {
	f := setup(t, v1alpha1.CHAPMutual, host("a", iqnA), host("b", iqnB))
	var c v1alpha1.StorageCluster
	if err := f.c.Get(t.Context(), client.ObjectKey{Name: "c"}, &c); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	f.k.Grace, f.k.Spare, f.k.Now = time.Minute, time.Hour, func() time.Time { return now }
	sweep := func(after time.Duration, want int) {
		t.Helper()
		now = now.Add(after)
		if err := f.k.Sweep(t.Context(), &c, "p"); err != nil || f.left() != want {
			t.Errorf("%d Secrets are left, want %d: %v", f.left(), want, err)
		}
	}
	f.get("p", iqnA)
	f.get("p", iqnB)
	if err := f.c.Create(t.Context(), lun("l", iqnA, "u")); err != nil {
		t.Fatal(err)
	}
	sweep(0, 2)
	sweep(59*time.Minute, 2)
	sweep(2*time.Minute, 1) // b's
	if err := f.c.Delete(t.Context(), lun("l", iqnA, "u")); err != nil {
		t.Fatal(err)
	}
	sweep(0, 1)
	sweep(59*time.Minute, 1)
	if err := f.c.Create(t.Context(), lun("l", iqnA, "u")); err != nil {
		t.Fatal(err)
	}
	sweep(10*time.Minute, 1)
	if err := f.c.Delete(t.Context(), lun("l", iqnA, "u")); err != nil {
		t.Fatal(err)
	}
	sweep(0, 1)
	sweep(59*time.Minute, 1)
	sweep(2*time.Minute, 0)
	f.get("p", iqnA) // the next LUN has new ones made
	sweep(0, 1)
}
