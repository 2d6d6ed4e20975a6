package enroll

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/internal/enroll"
	"github.com/gemel-storage/gemel/internal/pki"
	"github.com/gemel-storage/gemel/internal/testkit/indexed"
)

const iqn = "iqn.2026-11.storage.gemel:node.a"

// reviewer knows tokens "token of NODE".
type reviewer struct {
	err  error
	held chan chan struct{} // of "held token"s, each blocks until released
}

func (r *reviewer) Node(_ context.Context, token string) (string, error) {
	if token == "held token" {
		c := make(chan struct{})
		r.held <- c
		<-c
	}
	node, ok := strings.CutPrefix(token, "token of ")
	if !ok {
		return "", fmt.Errorf("%w: rubbish", errToken)
	}
	return node, r.err
}

type fixture struct {
	*testing.T
	c        client.Client
	s        *Server
	rec      *events.FakeRecorder
	reviewer *reviewer
	address  string
	ca       pki.Pair
	mu       sync.Mutex
	log      bytes.Buffer
}

func (f *fixture) write(prefix, args string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintln(&f.log, prefix, args)
}

func setup(t *testing.T) *fixture {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rec: events.NewFakeRecorder(100), reviewer: &reviewer{held: make(chan chan struct{})}}
	mapped := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: "p"}},
		Status: v1alpha1.LogicalUnitStatus{Hosts: []v1alpha1.HostMapping{{IQN: iqn, CHAPUser: "u"}, {IQN: iqn + "b"}}}}
	f.c = indexed.Client(fake.NewClientBuilder().WithScheme(s).WithObjects(mapped,
		&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		&v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.TargetPairSpec{Cluster: "c"}},
		&v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: v1alpha1.TargetPairSpec{Cluster: "c"}},
		&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.HostSpec{IQN: strings.ToUpper(iqn)}},
		&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.HostSpec{IQN: iqn + "b"}}).Build())
	a, ca, err := pki.New("enroll", pki.AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	f.ca = ca
	leaf, err := a.Issue(pki.EnrollURI, pki.LeafValidity)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.c.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cert"},
		Data: map[string][]byte{corev1.TLSCertKey: leaf.Cert, corev1.TLSPrivateKeyKey: leaf.Key}}); err != nil {
		t.Fatal(err)
	}
	f.s = &Server{Keeper: &chap.Keeper{Client: f.c, Live: f.c, Namespace: "ns"}, Reviewer: f.reviewer, Events: f.rec,
		Log:         funcr.New(f.write, funcr.Options{}),
		Certificate: FromSecret(f.c, client.ObjectKey{Namespace: "ns", Name: "cert"})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// worker is a client with a token, as in the node plugin.
func (f *fixture) worker(token string) *enroll.Client {
	f.Helper()
	dir := f.TempDir()
	c := &enroll.Client{Endpoint: f.address, CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token")}
	if err := errors.Join(os.WriteFile(c.CAFile, f.ca.Cert, 0o600), os.WriteFile(c.TokenFile, []byte(token+"\n"), 0o600)); err != nil {
		f.Fatal(err)
	}
	return c
}

// A worker gets its own credentials on a pair of which it has a LUN; otherwise the answer says why
// not.
func TestWorkerGetsItsOwnCredentials(t *testing.T) {
	f := setup(t)
	w := f.worker("token of a")
	if _, err := w.Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) || !strings.Contains(err.Error(), "being created") {
		t.Errorf("before there are any: %v", err)
	}
	c, err := f.s.Keeper.For(t.Context(), "p", iqn)
	if err != nil {
		t.Fatal(err)
	}
	a, err := w.Enroll(t.Context(), "p")
	if err != nil || a != (enroll.Answer{User: c.User, Secret: c.Secret, MutualUser: c.MutualUser, MutualSecret: c.MutualSecret}) {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := f.worker("token of b").Enroll(t.Context(), "p"); err != nil || a != (enroll.Answer{}) {
		t.Errorf("a host that needs none: %v, %v", a, err)
	}
	for name, x := range map[string]struct {
		token, pair string
		want        error
		says        string
	}{
		"no LUN there":    {"token of a", "q", enroll.ErrUnavailable, "no LUN of pair q"},
		"no such pair":    {"token of a", "nowhere", enroll.ErrRefused, "nowhere"},
		"no pair":         {"token of a", "", enroll.ErrRefused, "pair"},
		"no Host":         {"token of z", "p", enroll.ErrUnavailable, "Host z does not exist"},
		"a wrong token":   {"secret token", "p", enroll.ErrRefused, "not that of a node plugin"},
		"too long a name": {"token of a", strings.Repeat("x", 300), enroll.ErrRefused, "pair"},
		"too much":        {"token of a", strings.Repeat("x", enroll.MaxMessage), enroll.ErrRefused, "pair"},
		"no token":        {"", "p", enroll.ErrUnavailable, "bearer"},
	} {
		if _, err := f.worker(x.token).Enroll(t.Context(), x.pair); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) || x.token != "" && strings.Contains(err.Error(), x.token) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A clone of the worker.
	if err := f.c.Create(t.Context(), &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "clone"}, Spec: v1alpha1.HostSpec{IQN: iqn}}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.worker("token of clone").Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), "as host a") {
		t.Errorf("%v", err)
	}
	if len(f.rec.Events) != 1 || !strings.Contains(<-f.rec.Events, v1alpha1.ReasonNotEnrolled) {
		t.Error("there is no event about the clone")
	}
	if _, err := w.Enroll(t.Context(), "p"); err != nil {
		t.Errorf("the clone invalidates the worker's credentials: %v", err)
	}
	f.reviewer.err = errors.New("the API server is down")
	if _, err := w.Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range []string{c.Secret, c.MutualSecret, "token of"} {
		if strings.Contains(f.log.String(), s) {
			t.Errorf("%q is in the log", s)
		}
	}
}

// A worker trusts only the operator.
func TestWorkerTrustsOnlyTheOperator(t *testing.T) {
	f := setup(t)
	w := f.worker("token of a")
	other, ca, err := pki.New("other", pki.AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.CAFile, ca.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) || !strings.Contains(err.Error(), "gemel-operator") {
		t.Errorf("another authority: %v", err)
	}
	// Of the right authority, but a target's.
	leaf, err := other.Issue(pki.TargetURI("c", "p", "a"), pki.LeafValidity)
	if err != nil {
		t.Fatal(err)
	}
	var s corev1.Secret
	key := client.ObjectKey{Namespace: "ns", Name: "cert"}
	if err := f.c.Get(t.Context(), key, &s); err != nil {
		t.Fatal(err)
	}
	s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey] = leaf.Cert, leaf.Key
	if err := f.c.Update(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Enroll(t.Context(), "p"); !errors.Is(err, pki.ErrPeerName) {
		t.Errorf("another's certificate: %v", err)
	}
	for _, path := range []*string{&w.CAFile, &w.TokenFile} {
		was := *path
		*path += "-none"
		if _, err := w.Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		*path = was
	}
	if err := os.WriteFile(w.CAFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if err := f.c.Delete(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if _, err := f.worker("token of a").Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) {
		t.Errorf("without a certificate: %v", err)
	}
}

// An address with endless requests is throttled, and others are served.
func TestLimitsThrottleOneAddressOnly(t *testing.T) {
	var l limits
	n := 0
	for range 10 * burst {
		if l.allow("10.0.0.1") {
			n++
		}
	}
	if n < burst || n > 2*burst || !l.allow("10.0.0.2") {
		t.Errorf("%d requests were allowed", n)
	}
	for i := range maxAddresses + 10 {
		l.allow(fmt.Sprint(i))
	}
	if len(l.by) > maxAddresses {
		t.Errorf("%d addresses are remembered", len(l.by))
	}
	f := setup(t)
	var all sync.WaitGroup
	var held []chan struct{}
	for range maxAtOnce {
		w := f.worker("held token")
		all.Go(func() { _, _ = w.Enroll(t.Context(), "p") })
		held = append(held, <-f.reviewer.held)
	}
	if _, err := f.worker("token of a").Enroll(t.Context(), "p"); !errors.Is(err, enroll.ErrUnavailable) || !strings.Contains(err.Error(), "wait a moment") {
		t.Errorf("%v", err)
	}
	for _, c := range held {
		close(c)
	}
	all.Wait()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 10 * time.Second}
	defer c.CloseIdleConnections()
	for _, x := range []struct {
		method, path string
		header       int
		want         int
	}{{http.MethodGet, enroll.Path, 0, http.StatusMethodNotAllowed}, {http.MethodPost, "/", 0, http.StatusNotFound}, {http.MethodPost, enroll.Path, 2 * maxHeader, http.StatusRequestHeaderFieldsTooLarge}} {
		q, err := http.NewRequestWithContext(t.Context(), x.method, "https://"+f.address+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("X-Long", strings.Repeat("x", x.header))
		r, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != x.want {
			t.Errorf("%+v: %s", x, r.Status)
		}
	}
}

// A manager starts the endpoint in every replica, and the reconciler of its certificate in the
// leader.
func TestEveryReplicaServesAndTheLeaderReconciles(t *testing.T) {
	if (&Server{}).NeedLeaderElection() || !(&Keep{}).NeedLeaderElection() {
		t.Error("every replica must serve, and only the leader reconcile certificates")
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	k := &Keep{Once: func(context.Context) error {
		if n++; n == 2 {
			cancel()
		}
		return errors.New("not yet")
	}}
	if err := k.Start(ctx); err != nil || n != 2 {
		t.Errorf("%d times, %v", n, err)
	}
}
