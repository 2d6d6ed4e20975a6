package pair

import (
	"bytes"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/pki"
	"github.com/gemel-storage/gemel/internal/testkit/indexed"
)

// The enrolment endpoint has a certificate that node plugins trust. Its authority is rotated like a
// cluster's; node plugins trust the next authority long before it signs.
func TestEnrollmentAuthorityIsTrustedBeforeItSigns(t *testing.T) {
	w := newWorld(t, "enroll")
	now := time.Now()
	w.r.Now = func() time.Time { return now }
	trusted := func() []byte {
		t.Helper()
		m := &corev1.ConfigMap{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: EnrollConfig}, m))
		return []byte(m.Data[pairconn.KeyCA])
	}
	step := func() *corev1.Secret {
		t.Helper()
		w.ok(w.r.Enrollment(w.ctx))
		s := w.secret(EnrollSecret())
		a, err := pki.Load(pki.Pair{Cert: w.secret(AuthoritySecret(enrollDomain)).Data[corev1.TLSCertKey], Key: w.secret(AuthoritySecret(enrollDomain)).Data[corev1.TLSPrivateKeyKey]})
		w.ok(err)
		if a.Due(s.Data[corev1.TLSCertKey], pki.EnrollURI, now) {
			t.Fatal("the endpoint's certificate is not that of its authority")
		}
		return s
	}
	first := step()
	if again := step(); again.ResourceVersion != first.ResourceVersion {
		t.Error("a certificate that is not due was renewed")
	}
	ca := w.secret(AuthoritySecret(enrollDomain))
	former := ca.Data[corev1.TLSCertKey]
	if !bytes.Equal(trusted(), former) {
		t.Errorf("node plugins trust %s", trusted())
	}
	ca.Annotations = map[string]string{AnnotationRotate: "now"}
	w.ok(w.c.Update(w.ctx, ca))
	var trustedAt time.Time
	for end := now.Add(3 * settleTime); now.Before(end); now = now.Add(time.Minute) {
		s, pem := step(), trusted()
		signer := w.secret(AuthoritySecret(enrollDomain)).Data[corev1.TLSCertKey]
		if !bytes.Contains(pem, signer) {
			t.Fatal("node plugins do not trust the authority that signs")
		}
		switch {
		case trustedAt.IsZero() && !bytes.Equal(pem, former):
			trustedAt = now
		case !bytes.Equal(signer, former) && now.Sub(trustedAt) < settleTime:
			t.Fatalf("the next authority signs %v after it was trusted", now.Sub(trustedAt))
		}
		_ = s
	}
	if bytes.Contains(trusted(), former) {
		t.Error("the former authority is still trusted")
	}
}

// A rotation does not wait for CHAP credentials, which are no certificates. They are deleted with
// their Host, and with the pair.
func TestCredentialsAreDeletedWithTheirHostAndPair(t *testing.T) {
	w := newWorld(t, "creds")
	w.run()
	now := time.Now()
	w.r.Now = func() time.Time { return now }
	w.r.CHAP = &chap.Keeper{Client: indexed.Client(w.r.Client), Live: w.r.Live, Namespace: w.r.Namespace}
	w.step()
	hosts := []*v1alpha1.Host{}
	for _, n := range []string{"a", "b"} {
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "creds-" + n}, Spec: v1alpha1.HostSpec{IQN: "iqn.2026-11.storage.gemel:creds." + n, AttachMode: "Userspace"}}
		w.ok(w.c.Create(w.ctx, h))
		hosts = append(hosts, h)
		_, err := w.r.CHAP.For(w.ctx, w.name, h.Spec.IQN)
		w.ok(err)
	}
	left := func(want int) {
		t.Helper()
		var l corev1.SecretList
		w.ok(w.c.List(w.ctx, &l, client.InNamespace(w.r.Namespace), client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentCHAP}))
		if len(l.Items) != want {
			t.Errorf("%d Secrets, want %d", len(l.Items), want)
		}
	}
	left(2)
	ca := w.secret(AuthoritySecret(w.name))
	former := ca.Data[corev1.TLSCertKey]
	ca.Annotations = map[string]string{AnnotationRotate: "now"}
	w.ok(w.c.Update(w.ctx, ca))
	for end := now.Add(6 * settleTime); now.Before(end); now = now.Add(5 * time.Minute) {
		w.step()
	}
	if bytes.Contains(w.secret(AuthoritySecret(w.name)).Data[pairconn.KeyCA], former) {
		t.Error("the authority is not rotated")
	}
	left(2)
	w.ok(w.c.Delete(w.ctx, hosts[0]))
	w.step()
	left(1)
	w.ok(w.c.Delete(w.ctx, w.get()))
	w.step()
	left(0)
	w.ok(w.c.Delete(w.ctx, hosts[1]))
}
