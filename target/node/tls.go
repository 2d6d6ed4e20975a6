package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Certificates name their holder in a URI: gemel://CLUSTER/PAIR/target/a for a node, gemel://CLUSTER/control for who may
// call the control API. All of it is checked: a certificate of another pair opens nothing here.

func loadTLS(c *Config) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("%w: tls-cert, tls-key: %w", ErrConfig, err)
	}
	raw, err := os.ReadFile(c.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("%w: tls-ca: %w", ErrConfig, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%w: tls-ca: %s holds no PEM certificate", ErrConfig, c.TLSCA)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, MinVersion: tls.VersionTLS13}, nil
}

// ErrPeerName: a certificate of the right authority, but not for this.
var ErrPeerName = errors.New("the certificate does not name who is expected")

func requireURI(want ...string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return fmt.Errorf("%w: there is none", ErrPeerName)
		}
		for _, u := range s.PeerCertificates[0].URIs {
			for _, w := range want {
				if u.String() == w {
					return nil
				}
			}
		}
		return fmt.Errorf("%w: it lacks the URI %v", ErrPeerName, want)
	}
}

func (n *Node) nodeURI(node string) string {
	return "gemel://" + n.cfg.Cluster + "/" + n.cfg.Pair + "/target/" + node
}

// peerTLS is for the link: the other side must be the other node of this pair. The name in the certificate is the
// URI, not an address, so the chain is verified here and the host name is not.
func (n *Node) peerTLS() *tls.Config {
	t := n.cfg.TLS.Clone()
	t.ClientAuth = tls.RequireAndVerifyClientCert
	t.InsecureSkipVerify = true // replaced by verifyChain: the same check without the address
	check := requireURI(n.nodeURI(n.self.Peer().String()))
	t.VerifyConnection = func(s tls.ConnectionState) error {
		if err := verifyChain(s, n.cfg.TLS.RootCAs); err != nil {
			return err
		}
		return check(s)
	}
	return t
}

func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: there is none", ErrPeerName)
	}
	inter := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		inter.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// controlTLS is for the control API.
func (n *Node) controlTLS() *tls.Config {
	t := n.cfg.TLS.Clone()
	t.ClientAuth = tls.RequireAndVerifyClientCert
	t.VerifyConnection = requireURI("gemel://" + n.cfg.Cluster + "/control")
	return t
}
