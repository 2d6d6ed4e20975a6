package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/pki"
)

// authority signs the certificates of a test.
type authority struct {
	*pki.Authority
	t   *testing.T
	dir string
	n   int
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a, p, err := pki.New("test authority", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r := &authority{Authority: a, t: t, dir: t.TempDir()}
	r.write("ca.pem", p.Cert)
	return r
}

func (a *authority) write(name string, b []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// config is a node's configuration with a certificate.
func (a *authority) config(node, uri string, expired bool) Config {
	a.t.Helper()
	life := time.Hour
	if expired {
		life = -time.Minute
	}
	p, err := a.Issue(uri, life)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	name := strconv.Itoa(a.n)
	return Config{Cluster: "c", Pair: "p", Node: node, TLSCert: a.write(name+".pem", p.Cert), TLSKey: a.write(name+".key", p.Key),
		TLSCA: filepath.Join(a.dir, "ca.pem")}
}

func (a *authority) node(name, uri string, expired bool) *Node {
	a.t.Helper()
	n := &Node{cfg: a.config(name, uri, expired)}
	var err error
	if n.tls, err = loadTLS(&n.cfg); err != nil {
		a.t.Fatal(err)
	}
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
	bare.GetClientCertificate, bare.GetCertificate = nil, nil
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
		conn, err := grpc.NewClient(p.cfg[0].ControlListen, grpc.WithTransportCredentials(credentials.NewTLS(tc.Client(func(tls.ConnectionState) error { return nil }))))
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
