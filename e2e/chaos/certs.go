package chaos

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/gemel-storage/gemel/e2e/harness"
)

// authority signs the certificates of one run: the link between the nodes and the control API use mutual TLS, as
// between two machines.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

// certLife is longer than any run.
const certLife = 7 * 24 * time.Hour

func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &authority{dir: dir}
	t := &x509.Certificate{Subject: pkix.Name{CommonName: "chaos"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	raw, key, err := a.sign(t)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	a.key = key
	return a, a.write("ca.pem", "CERTIFICATE", raw)
}

// sign makes a key and a certificate for it; the first one signs itself.
func (a *authority) sign(t *x509.Certificate) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	a.n++
	t.SerialNumber, t.NotBefore, t.NotAfter = big.NewInt(a.n), time.Now().Add(-time.Hour), time.Now().Add(certLife)
	parent, signer := t, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	return raw, key, err
}

func (a *authority) write(name, kind string, raw []byte) error {
	return os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600)
}

// issue writes name.pem and name.key: a certificate that carries a URI (the holder's role) and addresses.
func (a *authority) issue(name, uri string, ips ...string) error {
	u, err := url.Parse(uri)
	if err != nil {
		return err
	}
	t := &x509.Certificate{URIs: []*url.URL{u}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	for _, ip := range ips {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(ip))
	}
	raw, key, err := a.sign(t)
	if err != nil {
		return err
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := a.write(name+".pem", "CERTIFICATE", raw); err != nil {
		return err
	}
	return a.write(name+".key", "PRIVATE KEY", pkcs)
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// pki is what a pair and its control client need: flags for each node, credentials for the client.
func pki(dir string) (flags [2][]string, creds credentials.TransportCredentials, err error) {
	a, err := newAuthority(dir)
	if err != nil {
		return flags, nil, err
	}
	for i, n := range harness.Names {
		uri := fmt.Sprintf("gemel://%s/%s/target/%s", harness.Cluster, harness.PairName, n)
		if err := a.issue(n, uri, linkIP[i], mgmtIP[i]); err != nil {
			return flags, nil, err
		}
		flags[i] = []string{"--tls-cert", a.file(n + ".pem"), "--tls-key", a.file(n + ".key"), "--tls-ca", a.file("ca.pem")}
	}
	if err := a.issue("control", "gemel://"+harness.Cluster+"/control"); err != nil {
		return flags, nil, err
	}
	cert, err := tls.LoadX509KeyPair(a.file("control.pem"), a.file("control.key"))
	if err != nil {
		return flags, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return flags, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS13}), nil
}
