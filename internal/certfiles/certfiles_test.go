package certfiles

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pki"
)

func write(t *testing.T, dir string, leaf pki.Pair, ca []byte) {
	t.Helper()
	for name, b := range map[string][]byte{"tls.crt": leaf.Cert, "tls.key": leaf.Key, "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func load(t *testing.T, dir string) *Files {
	t.Helper()
	f, err := Load(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func issue(t *testing.T, a *pki.Authority, uri string, life time.Duration) pki.Pair {
	t.Helper()
	p, err := a.Issue(uri, life)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRotationNeedsNoRestart(t *testing.T) {
	a, ca, err := pki.New("test", pki.AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, issue(t, a, "gemel://c/control", time.Hour), ca.Cert)
	f := load(t, dir)
	before, _ := f.Current()
	next := issue(t, a, "gemel://c/control", time.Hour)
	write(t, dir, next, ca.Cert)
	later := time.Now().Add(time.Minute) // whatever the filesystem's clock steps are
	if err := errors.Join(os.Chtimes(filepath.Join(dir, "tls.crt"), later, later), os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	f.looked = time.Time{}
	if c, _ := f.Current(); !bytes.Equal(c.Certificate[0], before.Certificate[0]) {
		t.Fatal("a half that was written is in use")
	}
	write(t, dir, next, ca.Cert)
	f.looked = time.Time{}
	if c, _ := f.Current(); bytes.Equal(c.Certificate[0], before.Certificate[0]) {
		t.Fatal("the old certificate is in use")
	}
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
		s, err := l.Accept()
		if err == nil {
			err = tls.Server(s, server).HandshakeContext(ctx)
			_ = s.Close()
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, client)
	err = tc.HandshakeContext(ctx)
	if err == nil {
		_, rerr := tc.Read(make([]byte, 1)) // TLS 1.3: a server's refusal comes after the client's handshake
		_ = rerr                            // an end of file, or that refusal, which done has
	}
	_ = c.Close()
	return errors.Join(err, <-done)
}

func TestBothSidesAreVerified(t *testing.T) {
	a, ca, err := pki.New("test", pki.AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	other, otherCA, err := pki.New("other", pki.AuthorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	made := func(x *pki.Authority, root pki.Pair, life time.Duration) *Files {
		dir := t.TempDir()
		write(t, dir, issue(t, x, "gemel://c/control", life), root.Cert)
		return load(t, dir)
	}
	yes := func(tls.ConnectionState) error { return nil }
	errNo := errors.New("no")
	no := func(tls.ConnectionState) error { return errNo }
	good := made(a, ca, time.Hour)
	if err := handshake(t, good.Server(yes), good.Client(yes)); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]*Files{"of another authority": made(other, otherCA, time.Hour), "expired": made(a, ca, -time.Minute)} {
		if handshake(t, good.Server(yes), f.Client(yes)) == nil || handshake(t, f.Server(yes), good.Client(yes)) == nil {
			t.Errorf("a certificate %s is accepted", name)
		}
	}
	if err := handshake(t, good.Server(no), good.Client(yes)); !errors.Is(err, errNo) {
		t.Error(err)
	}
	if err := handshake(t, good.Server(yes), good.Client(no)); !errors.Is(err, errNo) {
		t.Error(err)
	}
	if handshake(t, good.Server(yes), &tls.Config{InsecureSkipVerify: true}) == nil {
		t.Error("a caller without certificate is let in")
	}
}
