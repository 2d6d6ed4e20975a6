package pair

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/certfiles"
	"github.com/gemel-storage/gemel/internal/pki"
)

// late is the longest delay until a pod sees a change of a Secret.
const late = 2 * time.Minute

// mounted is a Secret as a pod sees it.
type mounted struct {
	at   time.Time
	name string
	data map[string][]byte
	seen bool // as it was a minute before
}

func (m *mounted) files(t *testing.T) *certfiles.Files {
	t.Helper()
	dir := t.TempDir()
	for k, v := range m.data {
		if err := os.WriteFile(filepath.Join(dir, k), v, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := certfiles.Load(filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey), filepath.Join(dir, pairconn.KeyCA))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// link connects as the two nodes of a pair do.
func link(t *testing.T, a, b *certfiles.Files) (x, y *tls.Conn, err error) {
	t.Helper()
	all := func(tls.ConnectionState) error { return nil }
	p, q := net.Pipe()
	_ = p.SetDeadline(time.Now().Add(20 * time.Second))
	_ = q.SetDeadline(time.Now().Add(20 * time.Second))
	x, y = tls.Client(p, a.Link(all)), tls.Server(q, b.Link(all))
	done := make(chan error, 1)
	go func() {
		err := y.Handshake()
		if err == nil {
			_, err = y.Write([]byte{1}) // with TLS 1.3 the client gets the rejection on its first read
		}
		if err != nil {
			_ = q.Close()
		}
		done <- err
	}()
	err = x.Handshake()
	if err == nil {
		_, err = io.ReadFull(x, make([]byte, 1))
	}
	if err != nil {
		_ = p.Close()
	}
	return x, y, errors.Join(err, <-done)
}

// An authority that is old, or that an administrator wants to replace, is rotated: a party that is
// minutes late is never rejected, no connection breaks, and in the end no party trusts the former
// authority.
func TestRotationRejectsNoLateParty(t *testing.T) {
	for name, age := range map[string]time.Duration{"requested": 0, "old": pki.AuthorityValidity*2/3 + time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "rotate-"+name)
			w.down["a"], w.down["b"] = true, true
			now := time.Now()
			w.r.Now = func() time.Time { return now }
			_, pair, err := pki.NewAt("x", now.Add(-age), pki.AuthorityValidity)
			w.ok(err)
			w.ok(w.c.Create(w.ctx, secret(client.ObjectKey{Namespace: w.r.Namespace, Name: AuthoritySecret(w.name)}, w.name, pair, pair.Cert)))
			w.step()
			former := w.secret(AuthoritySecret(w.name)).Data[corev1.TLSCertKey]
			names := []string{NodeName(w.name, "a"), NodeName(w.name, "b"), ControlSecret(w.name)}
			first := func(i int) *mounted { return &mounted{at: now, name: names[i], data: w.secret(names[i]).Data} }
			x, y, err := link(t, first(0).files(t), first(1).files(t))
			w.ok(err)
			if age == 0 {
				ca := w.secret(AuthoritySecret(w.name))
				ca.Annotations = map[string]string{AnnotationRotate: "now"}
				w.ok(w.c.Update(w.ctx, ca))
			}
			var history []*mounted
			checked := 0
			for end := now.Add(3 * settleTime); now.Before(end); now = now.Add(time.Minute) {
				w.step()
				for i := range names {
					history = append(history, first(i))
				}
				// A party with any delay up to late, and one that is up to date.
				fresh := history[len(history)-len(names):]
				if n := len(history) - 2*len(names); n >= 0 && same(history[n], fresh[0]) && same(history[n+1], fresh[1]) && same(history[n+2], fresh[2]) {
					for _, f := range fresh {
						f.seen = true
					}
				}
				for _, old := range history {
					if now.Sub(old.at) > late {
						continue
					}
					for _, f := range fresh {
						if f.seen && (old.at == now || same(old, f)) {
							continue // tested a minute ago
						}
						a, b, err := link(t, old.files(t), f.files(t))
						if err != nil {
							t.Fatalf("%s as of %v before and %s: %v", old.name, now.Sub(old.at), f.name, err)
						}
						_, _ = a.NetConn().Close(), b.NetConn().Close()
						checked++
					}
				}
			}
			go func() { _, _ = y.Write([]byte("still")) }()
			if b := make([]byte, 5); true {
				if _, err := io.ReadFull(x, b); err != nil || string(b) != "still" {
					t.Errorf("the connection was cut: %q %v", b, err)
				}
			}
			ca := w.secret(AuthoritySecret(w.name))
			if bytes.Equal(ca.Data[corev1.TLSCertKey], former) || len(ca.Data[keyNextCert]) != 0 || len(ca.Annotations) != 0 {
				t.Fatalf("not rotated: %v, annotations %v", ca.Data, ca.Annotations)
			}
			for _, n := range append(names, ca.Name) {
				if s := w.secret(n); !bytes.Equal(s.Data[pairconn.KeyCA], ca.Data[corev1.TLSCertKey]) {
					t.Errorf("%s trusts more than the new authority", n)
				}
			}
			t.Logf("%d handshakes", checked)
			before := w.secret(ca.Name).ResourceVersion
			now = now.Add(time.Hour)
			w.step()
			if w.secret(ca.Name).ResourceVersion != before {
				t.Error("and again")
			}
		})
	}
}

// same reports whether nothing has changed since.
func same(x, y *mounted) bool {
	return bytes.Equal(x.data[pairconn.KeyCA], y.data[pairconn.KeyCA]) && bytes.Equal(x.data[corev1.TLSCertKey], y.data[corev1.TLSCertKey])
}

func (w *world) secret(name string) *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: name}, s))
	return s
}

// A step waits for the certificates of every pair: while one is stuck, the former authority stays
// trusted.
func TestRotationWaitsForEveryCertificate(t *testing.T) {
	w := newWorld(t, "waits")
	w.down["a"], w.down["b"] = true, true
	now := time.Now()
	w.r.Now = func() time.Time { return now }
	w.step()
	ca := w.secret(AuthoritySecret(w.name))
	old := w.secret(NodeName(w.name, "a")).DeepCopy()
	stuck := old.DeepCopy()
	stuck.ObjectMeta.Name, stuck.ResourceVersion, stuck.UID = "another-pair", "", ""
	w.ok(w.c.Create(w.ctx, stuck))
	ca.Annotations = map[string]string{AnnotationRotate: ""}
	w.ok(w.c.Update(w.ctx, ca))
	for range 5 {
		w.step()
		now = now.Add(settleTime)
	}
	if s := w.secret(ca.Name); len(s.Data[keyNextCert]) == 0 || !bytes.Equal(s.Data[corev1.TLSCertKey], ca.Data[corev1.TLSCertKey]) {
		t.Fatal("the next authority signs, and one node does not trust it")
	}
	stuck.Data[pairconn.KeyCA] = w.secret(ca.Name).Data[pairconn.KeyCA]
	w.ok(w.c.Update(w.ctx, stuck))
	for range 3 {
		w.step()
		now = now.Add(settleTime)
	}
	if s := w.secret(ca.Name); bytes.Equal(s.Data[corev1.TLSCertKey], ca.Data[corev1.TLSCertKey]) {
		t.Fatal("the rotation does not continue")
	}
}

// A deleted Secret of an authority is created again; certificates of the former authority stay
// trusted for a while.
func TestLostAuthorityStaysTrusted(t *testing.T) {
	w := newWorld(t, "lost-ca")
	w.down["a"], w.down["b"] = true, true
	w.step()
	ca := w.secret(AuthoritySecret(w.name))
	before := &mounted{data: w.secret(NodeName(w.name, "a")).Data}
	w.ok(w.c.Delete(w.ctx, ca))
	w.step()
	after := &mounted{data: w.secret(NodeName(w.name, "b")).Data}
	if !bytes.Contains(after.data[pairconn.KeyCA], ca.Data[corev1.TLSCertKey]) {
		t.Fatal("a node that is a minute late is rejected")
	}
	if _, _, err := link(t, after.files(t), before.files(t)); err == nil {
		t.Error("a node trusts the new authority before it has the new bundle: the check verifies nothing")
	}
}
