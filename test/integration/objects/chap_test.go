package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/enroll"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// Targets accept a worker only with its own credentials on their pair; objects and events contain
// no secret.
func TestCHAP(t *testing.T) {
	r := start(t, 2*time.Minute)
	second, err := harness.New(harness.Options{Dir: t.TempDir(), Binary: r.pair.Options.Binary, Name: "p1"})
	r.ok(err)
	t.Cleanup(func() { _ = second.Close() })
	r.ok(second.Start(r.ctx))
	r.ok(operator.AddPair(r.ctx, r.c, second))
	g := r.guard(v1alpha1.CHAPMutual, second)
	workers := map[string]*enroll.Client{hostA: g.worker("worker-a", hostA), hostB: g.worker("worker-b", hostB)}

	// Each worker has a LUN on each pair.
	at := map[string]attach.Attachment{}
	for i := 0; len(at) < 4; i++ {
		v := g.create(fmt.Sprintf("pvc-%d", i))
		for host := range workers {
			if _, there := at[host+v.Pairs[0]]; !there {
				a := g.attach(v.ID, host)
				if !a.Enroll || a.Pair != v.Pairs[0] {
					t.Fatalf("%+v", a)
				}
				at[host+v.Pairs[0]] = a
				break
			}
		}
	}
	creds := map[string]enroll.Answer{}
	for _, host := range []string{hostA, hostB} {
		for _, p := range []string{"p0", "p1"} {
			creds[host+p] = g.ask(workers[host], p, given)
		}
	}
	mine := at[hostA+"p0"]
	wrongMutual := creds[hostA+"p0"]
	wrongMutual.MutualSecret = creds[hostA+"p1"].MutualSecret
	for name, c := range map[string]enroll.Answer{"without": {}, "another worker's": creds[hostB+"p0"], "another pair's": creds[hostA+"p1"], "another mutual secret": wrongMutual} {
		for portal := range mine.Portals {
			if err := g.login(mine, portal, c); !errors.Is(err, initiator.ErrAuth) {
				t.Errorf("%s, portal %d: %v", name, portal, err)
			}
		}
	}
	for k, a := range at {
		for portal := range a.Portals {
			r.ok(g.login(a, portal, creds[k]))
		}
	}

	// A second LUN of the pair has the same credentials.
	for i := 10; ; i++ {
		v := g.create(fmt.Sprintf("pvc-%d", i))
		if v.Pairs[0] != "p0" {
			continue
		}
		a := g.attach(v.ID, hostA)
		if again := g.ask(workers[hostA], "p0", given); again != creds[hostA+"p0"] {
			t.Errorf("the credentials have changed")
		}
		r.ok(g.login(a, 0, creds[hostA+"p0"]))
		break
	}
	if n := len(g.secrets()); n != 4 {
		t.Errorf("%d Secrets", n)
	}

	// A worker that asks for the credentials of another pair gets nothing; the error for a clone of
	// a worker names both workers.
	if _, err := workers[hostA].Enroll(r.ctx, "p7"); !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), "p7") {
		t.Errorf("another pair: %v", err)
	}
	clone := g.worker("worker-c", hostA)
	if _, err := clone.Enroll(r.ctx, "p0"); !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), "worker-a") || !strings.Contains(err.Error(), "worker-c") {
		t.Errorf("a clone: %v", err)
	}
	if a, err := workers[hostA].Enroll(r.ctx, "p0"); err != nil || a != creds[hostA+"p0"] {
		t.Errorf("the clone costs the worker its credentials: %v", err)
	}
	v := g.create("pvc-stranger")
	short, cancel := context.WithTimeout(r.ctx, 3*time.Second)
	defer cancel()
	const stranger = "iqn.2026-11.storage.gemel:nobody"
	if _, err := g.b.Publish(short, backend.Publish{VolumeID: v.ID, HostIQN: stranger}); err == nil || !strings.Contains(err.Error(), stranger) {
		t.Errorf("a host without a Host object: %v", err)
	}
	if m := r.mapped(v.Name); v.Pairs[0] == "p0" && len(m) != 0 {
		t.Errorf("mapped to %v", m)
	}

	// What people can read.
	var shown strings.Builder
	var units v1alpha1.LogicalUnitList
	var hosts v1alpha1.HostList
	var pairs v1alpha1.TargetPairList
	for _, l := range []client.ObjectList{&units, &hosts, &pairs} {
		r.ok(r.c.List(r.ctx, l))
		r.ok(json.NewEncoder(&shown).Encode(l))
	}
	events, err := kubernetes.NewForConfigOrDie(r.cfg).EventsV1().Events("").List(r.ctx, metav1.ListOptions{})
	r.ok(err)
	r.ok(json.NewEncoder(&shown).Encode(events))
	for _, a := range at {
		r.ok(json.NewEncoder(&shown).Encode(a.PublishContext()))
	}
	for _, c := range creds {
		if strings.Contains(shown.String(), c.Secret) || strings.Contains(shown.String(), c.MutualSecret) {
			t.Errorf("a secret of %s shows", c.User)
		}
	}
	if !hasEvent(events, "worker-c", v1alpha1.ReasonNotEnrolled) || !hasEvent(events, "worker-a", "CredentialsMade") {
		t.Errorf("events: %+v", events.Items)
	}
}

func hasEvent(l *eventsv1.EventList, host, reason string) bool {
	for _, e := range l.Items {
		if e.Regarding.Name == host && e.Reason == reason {
			return true
		}
	}
	return false
}

// Deleted credentials are made again and given to the targets: sessions continue, logins need the
// new credentials.
func TestCHAPReplaced(t *testing.T) {
	r := start(t, 2*time.Minute)
	g := r.guard(v1alpha1.CHAPMutual)
	w := g.worker("worker-a", hostA)
	v, other := g.create("pvc-one"), g.create("pvc-two")
	a := g.attach(v.ID, hostA)
	g.attach(other.ID, hostA)
	old := g.ask(w, "p0", given)
	d := g.open(a, old)
	g.write(d)
	s := g.secrets()[0]
	if s.Name != chap.SecretName("p0", hostA) || s.Immutable == nil || !*s.Immutable {
		t.Errorf("%+v", s.ObjectMeta)
	}
	r.ok(r.c.Delete(r.ctx, &s))
	fresh := g.ask(w, "p0", func(a enroll.Answer) bool { return given(a) && a.User != old.User })
	for _, id := range []string{v.ID, other.ID} {
		r.until(id, "mapped with the new credentials", func(lu *v1alpha1.LogicalUnit) bool {
			return len(lu.Status.Hosts) == 1 && lu.Status.Hosts[0].CHAPUser == fresh.User && lu.Status.Hosts[0].Generation != 0
		})
	}
	if again := r.unit(v.ID).Status.Hosts[0]; uint64(again.Generation) != a.Generation || again.LUN != int32(a.LUN) {
		t.Errorf("mapped again: %+v, was %+v", again, a)
	}
	g.write(d)
	if err := g.login(a, 0, old); !errors.Is(err, initiator.ErrAuth) {
		t.Errorf("the former credentials: %v", err)
	}
	r.ok(g.login(a, 1, fresh))

	// A target restarts: its path is refused, and is back with the new ones.
	r.ok(r.pair.Kill(0))
	r.ok(r.pair.StartNode(0))
	r.ok(harness.Wait(r.ctx, "the path is refused", func() (bool, string) {
		p := d.Paths()
		return !p[0].Connected && initiator.CredentialsRefused(p[0].LastError), fmt.Sprintf("%+v", p)
	}))
	g.write(d)
	auth, mutual := keys(fresh)
	r.ok(d.SetCredentials(auth, mutual))
	r.ok(harness.Wait(r.ctx, "the path is back", func() (bool, string) { p := d.Paths(); return p[0].Connected, fmt.Sprintf("%+v", p) }))
	g.write(d)
}

// An attachment stays as it is when the cluster's spec changes; a new attachment follows the spec.
func TestCHAPChanges(t *testing.T) {
	r := start(t, 2*time.Minute)
	g := r.guard(v1alpha1.CHAPNone)
	w := g.worker("worker-a", hostA)
	one, two := g.create("pvc-one"), g.create("pvc-two")
	change := func(mode string) {
		t.Helper()
		var c v1alpha1.StorageCluster
		r.ok(r.c.Get(r.ctx, client.ObjectKey{Name: operator.Cluster}, &c))
		c.Spec.Security.CHAP = mode
		r.ok(r.c.Update(r.ctx, &c))
		time.Sleep(300 * time.Millisecond) // the operator's cache
	}
	a := g.attach(one.ID, hostA)
	r.ok(g.login(a, 0, enroll.Answer{}))
	if a.Enroll || len(g.secrets()) != 0 {
		t.Errorf("%+v, %d Secrets", a, len(g.secrets()))
	}
	g.ask(w, "p0", func(a enroll.Answer) bool { return !given(a) })

	change(v1alpha1.CHAPMutual)
	if b := g.attach(two.ID, hostA); b.Enroll {
		t.Error("the second LUN needs credentials, and the first one's session has none")
	}
	r.ok(g.login(a, 0, enroll.Answer{}))
	for _, id := range []string{one.ID, two.ID} {
		r.ok(r.b.Unpublish(r.ctx, id, hostA))
	}
	if a = g.attach(one.ID, hostA); !a.Enroll {
		t.Error("the first LUN needs no credentials")
	}
	c := g.ask(w, "p0", given)
	r.ok(g.login(a, 0, c))
	if err := g.login(a, 0, enroll.Answer{}); !errors.Is(err, initiator.ErrAuth) {
		t.Errorf("without: %v", err)
	}

	change(v1alpha1.CHAPNone)
	if b := g.attach(two.ID, hostA); !b.Enroll {
		t.Error("the second LUN needs no credentials any more, and the first one's session has some")
	}
	r.ok(g.login(a, 0, c))
	for _, id := range []string{one.ID, two.ID} {
		r.ok(r.b.Unpublish(r.ctx, id, hostA))
	}
	if a = g.attach(one.ID, hostA); a.Enroll {
		t.Error("the first LUN needs credentials")
	}
	r.ok(g.login(a, 0, enroll.Answer{}))
}

// Objects and credentials are lost: they are made again, and workers enrol again. Sessions
// continue.
func TestCHAPImport(t *testing.T) {
	r := start(t, 2*time.Minute)
	g := r.guard(v1alpha1.CHAPMutual)
	w := g.worker("worker-a", hostA)
	traces := r.claims()
	v := g.create("pvc-one")
	a := g.attach(v.ID, hostA)
	old := g.ask(w, "p0", given)
	d := g.open(a, old)
	r.clean()
	for _, s := range g.secrets() {
		r.ok(r.c.Delete(r.ctx, &s))
	}
	if err := r.c.Get(r.ctx, client.ObjectKey{Name: v.ID}, &v1alpha1.LogicalUnit{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	g.write(d)
	out, err := r.importer(traces, true)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.ok(operator.AddPair(r.ctx, r.c, r.pair))
	fresh := g.ask(w, "p0", func(a enroll.Answer) bool { return given(a) && a.User != old.User })
	r.ok(g.login(a, 0, fresh))
	g.write(d)
	if again := r.unit(v.ID).Status.Hosts; len(again) != 1 || uint64(again[0].Generation) != a.Generation {
		t.Errorf("%+v", again)
	}
}

// Only the token of a node plugin, bound to a pod and made for the operator, is accepted.
func TestOnlyTokensOfNodePluginsEnrol(t *testing.T) {
	r := start(t, time.Minute)
	g := r.guard(v1alpha1.CHAPMutual)
	w := g.worker("worker-a", hostA)
	g.attach(g.create("pvc-one").ID, hostA)
	g.ask(w, "p0", given)
	k := kubernetes.NewForConfigOrDie(r.cfg)
	elsewhere := envtest.Namespace(t, r.cfg)
	for _, x := range []struct{ ns, account string }{{g.namespace, "somebody"}, {elsewhere, enroll.ServiceAccount}} {
		_, err := k.CoreV1().ServiceAccounts(x.ns).Create(r.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: x.account}}, metav1.CreateOptions{})
		r.ok(err)
	}
	for name, x := range map[string]struct{ ns, account, node, audience, says string }{
		"another account":   {g.namespace, "somebody", "worker-a", enroll.Audience, "somebody"},
		"another namespace": {elsewhere, enroll.ServiceAccount, "worker-a", enroll.Audience, elsewhere},
		"no pod":            {g.namespace, enroll.ServiceAccount, "", enroll.Audience, "bound to a pod"},
		"another audience":  {g.namespace, enroll.ServiceAccount, "worker-a", "somebody/else", enroll.Audience},
	} {
		token, err := operator.Token(r.ctx, k, x.ns, x.account, x.node, x.audience)
		r.ok(err)
		bad := *w
		bad.TokenFile = t.TempDir() + "/token"
		r.ok(os.WriteFile(bad.TokenFile, []byte(token), 0o600))
		if _, err := bad.Enroll(r.ctx, "p0"); !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), x.says) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s, err := k.CoreV1().Secrets(g.namespace).Get(r.ctx, pair.EnrollSecret(), metav1.GetOptions{}); err != nil || len(s.Data) != 3 {
		t.Errorf("%v, %v", s, err)
	}
}
