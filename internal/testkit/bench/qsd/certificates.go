package qsd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// makeCertificates makes an authority and a certificate of it for each node, under the names that
// tls-creds-x509 looks for. internal/pki cannot be used: its certificates name URIs, and qemu
// compares a host name or address.
func makeCertificates(client, server string) error {
	now := time.Now()
	common := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), BasicConstraintsValid: true}
	}
	ca := common(1, "qsd authority")
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	for i, n := range []struct {
		dir, name string
		usage     x509.ExtKeyUsage
	}{{client, "client", x509.ExtKeyUsageClientAuth}, {server, "server", x509.ExtKeyUsageServerAuth}} {
		leaf := common(int64(2+i), n.name)
		leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{n.usage}
		leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		caDER, err1 := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
		leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
		if err := errors.Join(err1, err2, os.Mkdir(n.dir, 0o700)); err != nil {
			return err
		}
		if err := errors.Join(
			writePEM(filepath.Join(n.dir, "ca-cert.pem"), "CERTIFICATE", caDER),
			writePEM(filepath.Join(n.dir, n.name+"-cert.pem"), "CERTIFICATE", leafDER),
			writePEM(filepath.Join(n.dir, n.name+"-key.pem"), "PRIVATE KEY", keyDER)); err != nil {
			return err
		}
	}
	return nil
}

func writePEM(name, kind string, der []byte) error {
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
