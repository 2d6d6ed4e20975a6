// Package pki is the small authority of a storage cluster: it makes the certificates of the link
// between two target nodes and of the control API. A certificate names its holder in a URI, which
// is what both sides check; addresses do not matter.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Lives of what is made here.
const (
	AuthorityValidity = 10 * 365 * 24 * time.Hour
	LeafValidity      = 90 * 24 * time.Hour
)

// backdate is how far a certificate begins in the past: clocks differ.
const backdate = time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate with its key, PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// TargetURI is the name of a target node, ControlURI that of who may call the control API of a
// cluster's targets.
func TargetURI(cluster, pair, node string) string {
	return "gemel://" + cluster + "/" + pair + "/target/" + node
}

// ControlURI names who may call the control API.
func ControlURI(cluster string) string { return "gemel://" + cluster + "/control" }

// EnrollURI names the operator's endpoint at which workers ask for their credentials.
const EnrollURI = "gemel://enroll.operator/server"

// New makes an authority, from now on.
func New(name string, life time.Duration) (*Authority, Pair, error) {
	return NewAt(name, time.Now(), life)
}

// NewAt is New for another moment.
func NewAt(name string, now time.Time, life time.Duration) (*Authority, Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, Pair{}, fmt.Errorf("authority %s: %w", name, err)
	}
	t := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign}
	raw, err := sign(t, t, &key.PublicKey, key, now, life)
	if err != nil {
		return nil, Pair{}, fmt.Errorf("authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, Pair{}, fmt.Errorf("authority %s: %w", name, err)
	}
	p, err := encode(raw, key)
	return &Authority{cert, key}, p, err
}

// ErrPEM: what was stored is not what this package made.
var ErrPEM = errors.New("not the certificate and key of an authority")

// Load takes up an authority that New made.
func Load(p Pair) (*Authority, error) {
	cert, err := parse(p.Cert)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(p.Key)
	if b == nil {
		return nil, fmt.Errorf("%w: no PEM key", ErrPEM)
	}
	k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPEM, err)
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA {
		return nil, fmt.Errorf("%w: the key does not belong to it", ErrPEM)
	}
	return &Authority{cert, key}, nil
}

// Issue makes a certificate for the holder of a URI, good as a server and as a client, from now on.
func (a *Authority) Issue(uri string, life time.Duration) (Pair, error) {
	return a.IssueAt(uri, time.Now(), life)
}

// IssueAt is Issue for another moment.
func (a *Authority) IssueAt(uri string, now time.Time, life time.Duration) (Pair, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate for %q: %w", uri, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate for %s: %w", uri, err)
	}
	raw, err := sign(&x509.Certificate{URIs: []*url.URL{u}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, a.cert, &key.PublicKey, a.key, now, life)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate for %s: %w", uri, err)
	}
	return encode(raw, key)
}

// Due reports whether a certificate for uri has to be made again: it is none of this authority's,
// is for another name, or two thirds of its life are over.
func (a *Authority) Due(certPEM []byte, uri string, now time.Time) bool {
	c, err := parse(certPEM)
	if err != nil || c.CheckSignatureFrom(a.cert) != nil || len(c.URIs) != 1 || c.URIs[0].String() != uri {
		return true
	}
	return old(c, now)
}

func old(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3))
}

// Old reports whether two thirds of the authority's own life are over.
func (a *Authority) Old(now time.Time) bool { return old(a.cert, now) }

// Signed reports whether a certificate is of this authority.
func (a *Authority) Signed(certPEM []byte) bool {
	c, err := parse(certPEM)
	return err == nil && c.CheckSignatureFrom(a.cert) == nil
}

// NotAfter is when the authority itself ends.
func (a *Authority) NotAfter() time.Time { return a.cert.NotAfter }

// ErrPeerName: a certificate of the right authority, but not for this.
var ErrPeerName = errors.New("the certificate does not have the expected name")

// VerifyChain checks the other side's chain against the authorities, as TLS itself does, but not
// its host name.
func VerifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: the peer sent no certificate", ErrPeerName)
	}
	inter := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		inter.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// RequireURI checks, after VerifyChain, that the other side is one of those that the URIs name.
func RequireURI(uris ...string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		for _, u := range s.PeerCertificates[0].URIs {
			if slices.Contains(uris, u.String()) {
				return nil
			}
		}
		return fmt.Errorf("%w: it lacks the URI %s", ErrPeerName, strings.Join(uris, " or "))
	}
}

func sign(t, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey, now time.Time, life time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial, now.Add(-backdate), now.Add(life)
	return x509.CreateCertificate(rand.Reader, t, parent, pub, key)
}

func encode(raw []byte, key *ecdsa.PrivateKey) (Pair, error) {
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})}, nil
}

func parse(certPEM []byte) (*x509.Certificate, error) {
	b, _ := pem.Decode(certPEM)
	if b == nil {
		return nil, fmt.Errorf("%w: no PEM certificate", ErrPEM)
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPEM, err)
	}
	return c, nil
}
