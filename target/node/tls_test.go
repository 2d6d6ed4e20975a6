package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
)

// authority signs the certificates of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	raw, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, cert: cert, key: key, dir: t.TempDir()}
	a.write("ca.pem", "CERTIFICATE", raw)
	return a
}

func (a *authority) write(name, kind string, raw []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue makes a certificate that carries a URI and returns its files.
func (a *authority) issue(uri string, expired bool) (cert, key string) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	u, err := url.Parse(uri)
	if err != nil {
		a.t.Fatal(err)
	}
	end := time.Now().Add(time.Hour)
	if expired {
		end = time.Now().Add(-time.Minute)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), URIs: []*url.URL{u}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: end, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	raw, err := x509.CreateCertificate(rand.Reader, tpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	name := strings.NewReplacer("/", "_", ":", "_").Replace(uri)
	return a.write(name+".pem", "CERTIFICATE", raw), a.write(name+".key", "PRIVATE KEY", pkcs)
}

// config is a node's configuration with a certificate.
func (a *authority) config(node, uri string, expired bool) Config {
	cert, key := a.issue(uri, expired)
	return Config{Cluster: "c", Pair: "p", Node: node, TLSCert: cert, TLSKey: key, TLSCA: filepath.Join(a.dir, "ca.pem")}
}

func (a *authority) node(name, uri string, expired bool) *Node {
	a.t.Helper()
	cfg := a.config(name, uri, expired)
	var err error
	if cfg.TLS, err = loadTLS(&cfg); err != nil {
		a.t.Fatal(err)
	}
	n := &Node{cfg: cfg}
	if name == "b" {
		n.self = 1
	}
	return n
}

// handshake joins two ends; both have to be content.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = tls.Server(c, server).HandshakeContext(ctx)
			defer func() { _ = c.Close() }()
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	cerr := tls.Client(c, client).HandshakeContext(ctx)
	if cerr != nil {
		_ = c.Close()
	}
	return errors.Join(cerr, <-done)
}

func TestLinkTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	const uriA, uriB = "gemel://c/p/target/a", "gemel://c/p/target/b"
	a := ca.node("a", uriA, false)
	for name, c := range map[string]struct {
		n    *Node
		says string
	}{
		"the peer":                 {ca.node("b", uriB, false), ""},
		"of another pair":          {ca.node("b", "gemel://c/q/target/b", false), "lacks the URI"},
		"of another cluster":       {ca.node("b", "gemel://d/p/target/b", false), "lacks the URI"},
		"the same node":            {ca.node("b", uriA, false), "lacks the URI"},
		"the control plane":        {ca.node("b", "gemel://c/control", false), "lacks the URI"},
		"of another authority":     {other.node("b", uriB, false), "unknown authority"},
		"whose certificate is old": {ca.node("b", uriB, true), "expired"},
	} {
		for dir, cfgs := range map[string][2]*tls.Config{"accepts": {a.peerTLS(), c.n.peerTLS()}, "dials": {c.n.peerTLS(), a.peerTLS()}} {
			err := handshake(t, cfgs[0], cfgs[1])
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("a %s one %s: %v, want %q", dir, name, err, c.says)
			}
		}
	}
	bare := a.peerTLS()
	bare.Certificates = nil
	if err := handshake(t, a.peerTLS(), bare); err == nil {
		t.Error("a peer without certificate is let in")
	}
}

func TestControlTLS(t *testing.T) {
	ca := newAuthority(t)
	p := newTestPair(t)
	for i, name := range []string{"a", "b"} {
		c := ca.config(name, "gemel://c/p/target/"+name, false)
		p.cfg[i].Cluster, p.cfg[i].Pair = c.Cluster, c.Pair
		p.cfg[i].TLSCert, p.cfg[i].TLSKey, p.cfg[i].TLSCA = c.TLSCert, c.TLSKey, c.TLSCA
	}
	p.start(0)
	p.start(1)
	status1 := func(uri string) error {
		cfg := ca.config("", uri, false)
		tc, err := loadTLS(&cfg)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := grpc.NewClient(p.cfg[0].ControlListen, grpc.WithTransportCredentials(credentials.NewTLS(tc)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s, err := targetv1.NewTargetServiceClient(conn).GetStatus(ctx, &targetv1.GetStatusRequest{})
		if err == nil && s.Cluster != "c" {
			t.Errorf("status %v", s)
		}
		return err
	}
	p.until("both serve over mutual TLS", func() bool { return p.nodes[0].ready() == nil && p.nodes[1].ready() == nil })
	if err := status1("gemel://c/control"); err != nil {
		t.Error(err)
	}
	for _, uri := range []string{"gemel://c/p/target/a", "gemel://d/control"} {
		if err := status1(uri); status.Code(err) != codes.Unavailable {
			t.Errorf("the control API answers a certificate of %s: %v", uri, err)
		}
	}
}

func TestTLSFilesAreNamed(t *testing.T) {
	ca := newAuthority(t)
	good := ca.config("a", "gemel://c/p/target/a", false)
	empty := filepath.Join(ca.dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"tls-cert": func(c *Config) { c.TLSCert = "/does/not/exist" },
		"tls-key":  func(c *Config) { c.TLSKey = empty },
		"tls-ca":   func(c *Config) { c.TLSCA = empty },
	} {
		c := good
		change(&c)
		if _, err := loadTLS(&c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
