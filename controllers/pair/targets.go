package pair

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairs"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// Targets are the control APIs of the nodes of pairs, each by itself.
type Targets interface {
	// Node gives the control API of one node. The connection is made when it is used.
	Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error)
}

// callTime bounds a call to one node.
const callTime = 3 * time.Second

// Dialer implements Targets with the certificate that the operator keeps for a cluster.
type Dialer struct {
	Live      client.Reader
	Namespace string

	mu    sync.Mutex
	conns map[string]*connection
}

type connection struct {
	version string // of the secret that it was made with
	conn    *grpc.ClientConn
}

// ErrAddress: the pair's Service has none yet.
var ErrAddress = errors.New("the node has no address yet")

// Node implements Targets.
func (d *Dialer) Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error) {
	address := ""
	for _, n := range p.Spec.Nodes {
		if n.Name == node {
			address = n.Address
		}
	}
	if address == "" {
		return nil, ErrAddress
	}
	s := &corev1.Secret{}
	if err := d.Live.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: ControlSecret(p.Spec.Cluster)}, s); err != nil {
		return nil, fmt.Errorf("certificate of the control API: %w", err)
	}
	key := p.Name + "/" + node + "/" + address
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.conns[key]; c != nil && c.version == s.ResourceVersion {
		return targetv1.NewTargetServiceClient(c.conn), nil
	} else if c != nil {
		_ = c.conn.Close()
		delete(d.conns, key)
	}
	creds, err := pairclient.NewTLS(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], s.Data[keyCA], p.Spec.Cluster, p.Name)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", s.Name, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(address, strconv.Itoa(pairs.ControlPort)), grpc.WithTransportCredentials(credentials.NewTLS(creds)))
	if err != nil {
		return nil, err
	}
	if d.conns == nil {
		d.conns = map[string]*connection{}
	}
	d.conns[key] = &connection{s.ResourceVersion, conn}
	return targetv1.NewTargetServiceClient(conn), nil
}

// Close ends all connections.
func (d *Dialer) Close() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		err = errors.Join(err, c.conn.Close())
	}
	d.conns = nil
	return err
}
