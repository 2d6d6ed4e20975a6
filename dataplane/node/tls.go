package node

import (
	"crypto/tls"
	"fmt"

	"github.com/gemel-storage/gemel/internal/certfiles"
	"github.com/gemel-storage/gemel/internal/pki"
)

// Certificates name their holder in a URI: gemel://CLUSTER/PAIR/target/a for a node,
// gemel://CLUSTER/control for who may call the control API. All of it is checked: a certificate of
// another pair opens nothing here.

func loadTLS(c *Config) (*certfiles.Files, error) {
	f, err := certfiles.Load(c.TLSCert, c.TLSKey, c.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("%w: tls-%w", ErrConfig, err)
	}
	return f, nil
}

// peerTLS is for the link, whichever side dials: the other one must be the other node of this pair.
func (n *Node) peerTLS() *tls.Config {
	return n.tls.Link(pki.RequireURI(pki.TargetURI(n.cfg.Cluster, n.cfg.Pair, n.self.Peer().String())))
}

// controlTLS is for the control API.
func (n *Node) controlTLS() *tls.Config {
	return n.tls.Server(pki.RequireURI(pki.ControlURI(n.cfg.Cluster)))
}
