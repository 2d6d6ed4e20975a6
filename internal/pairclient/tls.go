package pairclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/gemel-storage/gemel/internal/pki"
)

// LoadTLS reads PEM files for NewTLS.
func LoadTLS(certFile, keyFile, caFile, cluster, pair string) (*tls.Config, error) {
	var pem [3][]byte
	for i, f := range []string{certFile, keyFile, caFile} {
		var err error
		if pem[i], err = os.ReadFile(f); err != nil {
			return nil, err
		}
	}
	return NewTLS(pem[0], pem[1], pem[2], cluster, pair)
}

// NewTLS is for PEM contents. Certificates name their holder in a URI: ours must be
// gemel://CLUSTER/control, the nodes' gemel://CLUSTER/PAIR/target/a and .../b, which is checked in
// place of their address.
func NewTLS(cert, key, ca []byte, cluster, pair string) (*tls.Config, error) {
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("authority: it contains no PEM certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // replaced by VerifyConnection: the chain as ever, and the URI in place of the host name
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s, roots, cluster, pair) }}, nil
}

func verify(s tls.ConnectionState, roots *x509.CertPool, cluster, pair string) error {
	if err := pki.VerifyChain(s, roots); err != nil {
		return err
	}
	return pki.RequireURI(pki.TargetURI(cluster, pair, "a"), pki.TargetURI(cluster, pair, "b"))(s)
}
