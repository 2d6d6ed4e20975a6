// Package certfiles keeps a certificate, its key and the authority that are read from files, and
// reads them again when they change, so that certificates are rotated without a restart.
// Connections that are up stay up.
package certfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/internal/pki"
)

// Files are the PEM files of one holder.
type Files struct {
	cert, key, ca string

	mu     sync.Mutex
	looked time.Time
	stamps [3]time.Time
	pair   *tls.Certificate
	roots  *x509.CertPool
}

// Error says which of the three files is at fault: "cert", "key" or "ca".
type Error struct {
	File string
	Err  error
}

func (e *Error) Error() string { return e.File + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// lookEvery is how often the files are looked at, at most; a handshake is what asks.
const lookEvery = time.Second

// Load reads the files for the first time. All must be good; later, what cannot be read leaves what
// was.
func Load(cert, key, ca string) (*Files, error) {
	f := &Files{cert: cert, key: key, ca: ca}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Current is the certificate and the authorities as they are now.
func (f *Files) Current() (*tls.Certificate, *x509.CertPool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.looked) > lookEvery {
		f.looked = now
		if f.stamps != f.stat() {
			_ = f.read() // a part may be written still; the next look finds the rest
		}
	}
	return f.pair, f.roots
}

// Client is for dialling: verify sees the other side's chain after it has been verified, in place
// of a host name.
func (f *Files) Client(verify func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, _ := f.Current()
			return c, nil
		},
		InsecureSkipVerify: true, // replaced by VerifyConnection: the chain as ever, and verify in place of the host name
		VerifyConnection:   f.check(verify),
	}
}

// Server is for listening: callers need a certificate of the authority, which verify judges.
func (f *Files) Server(verify func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, _ := f.Current()
			return c, nil
		},
		VerifyConnection: f.check(verify),
	}
}

// Link is for both sides of a connection whose ends are alike.
func (f *Files) Link(verify func(tls.ConnectionState) error) *tls.Config {
	c := f.Client(verify)
	s := f.Server(verify)
	c.ClientAuth, c.GetCertificate = s.ClientAuth, s.GetCertificate
	return c
}

func (f *Files) check(verify func(tls.ConnectionState) error) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		_, roots := f.Current()
		if err := pki.VerifyChain(s, roots); err != nil {
			return err
		}
		return verify(s)
	}
}

func (f *Files) read() error {
	stamps := f.stat()
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		file := "key"
		if raw, rerr := os.ReadFile(f.cert); rerr != nil || !x509.NewCertPool().AppendCertsFromPEM(raw) {
			file = "cert"
		}
		return &Error{file, err}
	}
	raw, err := os.ReadFile(f.ca)
	if err != nil {
		return &Error{"ca", err}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(raw) {
		return &Error{"ca", fmt.Errorf("%s contains no PEM certificate", f.ca)}
	}
	f.pair, f.roots, f.stamps = &pair, roots, stamps
	return nil
}

func (f *Files) stat() (s [3]time.Time) {
	for i, name := range []string{f.cert, f.key, f.ca} {
		if st, err := os.Stat(name); err == nil {
			s[i] = st.ModTime()
		}
	}
	return s
}
