package pairconn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// certificate returns a self-signed certificate.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func TestDirectoryFollowsObjectsAndCertificates(t *testing.T) {
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	c := fake.NewClientBuilder().WithScheme(s).Build()
	d := &Directory{Reader: c, Namespace: "gemel-system"}
	defer func() { _ = d.Close() }()
	refused := func(says string) {
		t.Helper()
		if _, err := d.Client(ctx, "p0"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), says) {
			t.Fatalf("%v does not say %q", err, says)
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused("TargetPair p0 does not exist")
	p := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "p0"}, Spec: v1alpha1.TargetPairSpec{Cluster: "main", Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
	ok(c.Create(ctx, p))
	refused("no addresses")
	p.Spec.Nodes[0].Address, p.Spec.Nodes[1].Address = "192.0.2.1", "2001:db8::1"
	ok(c.Update(ctx, p))
	refused("gemel-system/gemel-main-control")
	cert, key := certificate(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "gemel-system", Name: "gemel-main-control"}, Data: map[string][]byte{"tls.crt": cert, "tls.key": key}}
	ok(c.Create(ctx, secret))
	if _, err := d.Client(ctx, "p0"); err == nil || !strings.Contains(err.Error(), "authority") {
		t.Fatal(err)
	}
	secret.Data["ca.crt"] = cert
	ok(c.Update(ctx, secret))
	first, err := d.Client(ctx, "p0")
	ok(err)
	nodes := first.(*pairclient.Client).Nodes
	if len(nodes) != 2 || nodes[0].Address != "192.0.2.1:3261" || nodes[1].Address != "[2001:db8::1]:3261" {
		t.Fatal(nodes)
	}
	if again, err := d.Client(ctx, "p0"); err != nil || again != first {
		t.Error("another connection for the same pair")
	}
	// Single nodes use the same connections.
	if n, err := d.Node(ctx, p, "b"); err != nil || n != nodes[1] {
		t.Error(n, err)
	}
	if _, err := d.Node(ctx, &v1alpha1.TargetPair{Spec: v1alpha1.TargetPairSpec{Nodes: []v1alpha1.PairNode{{Name: "a"}}}}, "a"); !errors.Is(err, ErrNoAddress) {
		t.Error(err)
	}
	// A renewed certificate is used.
	secret.Data["tls.crt"], secret.Data["tls.key"] = certificate(t)
	ok(c.Update(ctx, secret))
	if again, err := d.Client(ctx, "p0"); err != nil || again == first {
		t.Error("the old certificate is still used", err)
	}
}
