package pairclient

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pki"
)

func cert(t *testing.T, uri string, parent *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: parent == nil}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = []*url.URL{u}
	}
	if parent == nil {
		parent, key = c, own
		c.KeyUsage = x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &own.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out, own
}

func TestVerifyWantsANodeOfThePair(t *testing.T) {
	ca, key := cert(t, "", nil, nil)
	other, otherKey := cert(t, "", nil, nil)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for uri, ok := range map[string]bool{"gemel://c/p/target/a": true, "gemel://c/p/target/b": true, "gemel://c/p/target/c": false,
		"gemel://c/q/target/a": false, "gemel://d/p/target/a": false, "gemel://c/control": false, "": false} {
		leaf, _ := cert(t, uri, ca, key)
		err := verify(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}, roots, "c", "p")
		if (err == nil) != ok || !ok && !errors.Is(err, pki.ErrPeerName) {
			t.Errorf("%q: %v", uri, err)
		}
	}
	stranger, _ := cert(t, "gemel://c/p/target/a", other, otherKey)
	if err := verify(tls.ConnectionState{PeerCertificates: []*x509.Certificate{stranger}}, roots, "c", "p"); err == nil {
		t.Error("a certificate of another authority was taken")
	}
	if err := verify(tls.ConnectionState{}, roots, "c", "p"); !errors.Is(err, pki.ErrPeerName) {
		t.Errorf("no certificate: %v", err)
	}
}
