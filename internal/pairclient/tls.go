package pairclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// ErrPeerName: the certificate is of the right authority but not of this pair.
var ErrPeerName = errors.New("the certificate does not name a node of the pair")

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

// NewTLS is for PEM contents. Certificates name their holder in a URI: ours must be gemel://CLUSTER/control, the nodes'
// gemel://CLUSTER/PAIR/target/a and .../b, which is checked in place of their address.
func NewTLS(cert, key, ca []byte, cluster, pair string) (*tls.Config, error) {
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("authority: it holds no PEM certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // replaced by VerifyConnection: the chain as ever, and the URI in place of the host name
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s, roots, cluster, pair) }}, nil
}

func verify(s tls.ConnectionState, roots *x509.CertPool, cluster, pair string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: there is none", ErrPeerName)
	}
	inter := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		inter.AddCert(c)
	}
	leaf := s.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return err
	}
	for _, u := range leaf.URIs {
		for _, node := range []string{"a", "b"} {
			if u.String() == "gemel://"+cluster+"/"+pair+"/target/"+node {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: it lacks the URI gemel://%s/%s/target/NODE", ErrPeerName, cluster, pair)
}
