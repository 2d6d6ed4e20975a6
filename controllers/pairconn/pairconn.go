// Package pairconn keeps connections to the pairs of TargetPairs.
package pairconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// ErrNoAddress: the node's Service has no address yet.
var ErrNoAddress = errors.New("the node has no address yet")

// ErrUnknown: the TargetPair does not exist, or has no addresses or certificate yet.
var ErrUnknown = errors.New("pair cannot be reached")

// Pair is the control API of a pair, over both its nodes.
type Pair interface {
	targetv1.TargetServiceClient
	// Serving returns the status of a node that serves; the error says why none does.
	Serving(ctx context.Context) (*targetv1.Status, error)
}

// Pairs finds a pair by the name of its TargetPair.
type Pairs interface {
	// Client never waits for the pair. ErrUnknown.
	Client(ctx context.Context, pair string) (Pair, error)
}

// ControlPort of every target node.
const ControlPort = 3261

// rest is the pause after no node of a pair took a call, so that its LUNs do not occupy all
// reconcilers.
const rest = 2 * time.Second

// patience is how long a call is retried while no node takes it: a failover is complete by then,
// and reconcilers retry.
const patience = 3 * time.Second

// SecretName of the client certificate for a cluster's targets: tls.crt, tls.key and ca.crt, in the
// operator's namespace. Its URI is gemel://CLUSTER/control, those of nodes are
// gemel://CLUSTER/PAIR/target/a and .../b.
func SecretName(cluster string) string { return "gemel-" + cluster + "-control" }

// TLS is for calls to a pair's nodes, from the Secret of SecretName.
func TLS(s *corev1.Secret, p *v1alpha1.TargetPair) (*tls.Config, error) {
	c, err := pairclient.NewTLS(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], s.Data[KeyCA], p.Spec.Cluster, p.Name)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return c, nil
}

// SecretLabels are on every Secret of the operator; its cache holds no others.
var SecretLabels = map[string]string{"app.kubernetes.io/name": "gemel", "app.kubernetes.io/managed-by": v1alpha1.OperatorManager}

// KeyCA is the key of the authorities' certificates in a Secret, in addition to tls.crt and
// tls.key.
const KeyCA = "ca.crt"

// Directory implements Pairs, and connects to single nodes, with the addresses of TargetPairs and
// the certificates of Secrets. A pair's connections are kept until its addresses or the certificate
// change.
type Directory struct {
	Reader    client.Reader // of TargetPairs and Secrets; a cache suffices, because addresses never change. It must cache Secrets of Namespace only
	Namespace string        // of the Secrets
	Port      int           // default ControlPort
	Plain     bool          // without certificates: loopback only

	mu    sync.Mutex
	known map[string]entry
}

type entry struct {
	made string // identifies the addresses and the certificate
	pair *pairclient.Client
}

// Client implements Pairs.
func (d *Directory) Client(ctx context.Context, name string) (Pair, error) {
	var o v1alpha1.TargetPair
	if err := d.Reader.Get(ctx, client.ObjectKey{Name: name}, &o); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: TargetPair %s does not exist", ErrUnknown, name)
		}
		return nil, fmt.Errorf("TargetPair %s: %w", name, err)
	}
	return d.open(ctx, &o)
}

// Node is the control API of one node of a pair: "a" or "b". ErrNoAddress, ErrUnknown.
func (d *Directory) Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error) {
	for _, n := range p.Spec.Nodes {
		if n.Name != node || n.Address == "" {
			continue
		}
		c, err := d.open(ctx, p)
		if err != nil {
			return nil, err
		}
		for i := range c.Nodes {
			if c.Nodes[i].Address == d.endpoint(n.Address) {
				return c.Nodes[i], nil
			}
		}
	}
	return nil, ErrNoAddress
}

func (d *Directory) endpoint(address string) string {
	port := d.Port
	if port == 0 {
		port = ControlPort
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

// open returns the connections of a pair, which connect on first use.
func (d *Directory) open(ctx context.Context, o *v1alpha1.TargetPair) (*pairclient.Client, error) {
	name := o.Name
	c := pairclient.Config{Patience: patience, Rest: rest}
	for _, n := range o.Spec.Nodes {
		if n.Address != "" {
			c.Endpoints = append(c.Endpoints, d.endpoint(n.Address))
		}
	}
	if len(c.Endpoints) == 0 {
		return nil, fmt.Errorf("%w: TargetPair %s has no addresses yet", ErrUnknown, name)
	}
	made := fmt.Sprint(o.UID, c.Endpoints)
	var s corev1.Secret
	if !d.Plain {
		key := client.ObjectKey{Namespace: d.Namespace, Name: SecretName(o.Spec.Cluster)}
		if err := d.Reader.Get(ctx, key, &s); apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: Secret %s does not exist yet", ErrUnknown, key)
		} else if err != nil {
			return nil, fmt.Errorf("secret %s: %w", key, err)
		}
		made += s.ResourceVersion
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	old, ok := d.known[name]
	if ok && old.made == made {
		return old.pair, nil
	}
	if !d.Plain {
		var err error
		if c.TLS, err = TLS(&s, o); err != nil {
			return nil, err
		}
	}
	p, err := pairclient.New(c)
	if err != nil {
		return nil, err
	}
	if ok {
		time.AfterFunc(time.Minute, func() { _ = old.pair.Close() }) // running calls may finish
	}
	if d.known == nil {
		d.known = map[string]entry{}
	}
	d.known[name] = entry{made, p}
	return p, nil
}

// Close ends all connections.
func (d *Directory) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, e := range d.known {
		errs = append(errs, e.pair.Close())
	}
	d.known = nil
	return errors.Join(errs...)
}
