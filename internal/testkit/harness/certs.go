package harness

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/gemel-storage/gemel/internal/certfiles"
	"github.com/gemel-storage/gemel/internal/pki"
)

// certValidity is longer than any run.
const certValidity = 7 * 24 * time.Hour

// PKI makes, below dir, what a pair and its control client need: flags for each node, credentials
// for the client. The link between the nodes and the control API use mutual TLS, as between two
// machines. The client's files are control.pem, control.key and ca.pem.
func PKI(dir string) (flags [2][]string, creds credentials.TransportCredentials, err error) {
	return PKIFor(dir, PairName)
}

// PKIFor is PKI for a pair with another name.
func PKIFor(dir, pair string) (flags [2][]string, creds credentials.TransportCredentials, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return flags, nil, err
	}
	a, root, err := pki.New("chaos", certValidity)
	if err != nil {
		return flags, nil, err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("ca.pem"), root.Cert, 0o600); err != nil {
		return flags, nil, err
	}
	issue := func(name, uri string) error {
		p, err := a.Issue(uri, certValidity)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(file(name+".pem"), p.Cert, 0o600), os.WriteFile(file(name+".key"), p.Key, 0o600))
	}
	for i, n := range Names {
		if err := issue(n, pki.TargetURI(Cluster, pair, n)); err != nil {
			return flags, nil, err
		}
		flags[i] = []string{"--tls-cert", file(n + ".pem"), "--tls-key", file(n + ".key"), "--tls-ca", file("ca.pem")}
	}
	if err := issue("control", pki.ControlURI(Cluster)); err != nil {
		return flags, nil, err
	}
	f, err := certfiles.Load(file("control.pem"), file("control.key"), file("ca.pem"))
	if err != nil {
		return flags, nil, fmt.Errorf("certificate of the control client: %w", err)
	}
	return flags, credentials.NewTLS(f.Client(func(tls.ConnectionState) error { return nil })), nil
}
