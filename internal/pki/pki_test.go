package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
	"time"
)

func TestIssueAndDue(t *testing.T) {
	a, ca, err := New("test", AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	uri := TargetURI("c", "p", "a")
	leaf, err := a.Issue(uri, LeafValidity)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(ca)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
			t.Error(err)
		}
	}
	other, _, err := New("other", AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		a    *Authority
		cert []byte
		uri  string
		at   time.Time
		due  bool
	}{
		"young":             {again, leaf.Cert, uri, now, false},
		"old":               {again, leaf.Cert, uri, now.Add(LeafValidity * 7 / 10), true},
		"somebody else's":   {again, leaf.Cert, ControlURI("c"), now, true},
		"another authority": {other, leaf.Cert, uri, now, true},
		"nothing":           {again, nil, uri, now, true},
		"rubbish":           {again, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), uri, now, true},
	} {
		if got := c.a.Due(c.cert, c.uri, c.at); got != c.due {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	_, ca, err := New("test", AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	a, other, err := New("other", AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Issue("gemel://c/control", LeafValidity)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Pair{"empty": {}, "another key": {ca.Cert, other.Key}, "no authority": leaf, "no key": {ca.Cert, nil}} {
		if _, err := Load(p); !errors.Is(err, ErrPEM) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
