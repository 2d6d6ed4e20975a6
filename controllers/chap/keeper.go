package chap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
)

// Errors of a Keeper. The text says which object and what to do.
var (
	// ErrUnknown: no Host object has the iSCSI name, so that no worker could request its
	// credentials.
	ErrUnknown = errors.New("unknown host")
	// ErrTwice: two Host objects have the same iSCSI name.
	ErrTwice = errors.New("several hosts have the same iSCSI name")
	// ErrCluster: the StorageCluster, which enables or disables CHAP, does not exist.
	ErrCluster = errors.New("the StorageCluster does not exist")
)

// Keeper of credentials.
type Keeper struct {
	client.Client               // reads from a cache
	Live          client.Reader // never a cache
	Namespace     string        // of the Secrets
	// Made is called after credentials were created, to record an event; may be nil.
	Made func(h *v1alpha1.Host, pair string)
	// Grace is how long unused credentials are kept, because lost objects may be imported again.
	// Default: 0.
	Grace time.Duration
	// Spare is how long the credentials of a worker are kept that has no LUN of the pair. Secrets
	// would grow towards workers times pairs else. Default 0: as long as there is the worker.
	Spare time.Duration
	Now   func() time.Time // nil: time.Now

	mu   sync.Mutex
	idle map[unused]time.Time // since when
}

// Get returns the credentials of a worker on a pair from the cache; nil if there are none.
// ErrDamaged.
func (k *Keeper) Get(ctx context.Context, pair, iqn string) (*Credentials, error) {
	return k.read(ctx, k.Client, pair, iqn)
}

func (k *Keeper) read(ctx context.Context, from client.Reader, pair, iqn string) (*Credentials, error) {
	s := &corev1.Secret{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: SecretName(pair, iqn)}, s); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return Of(s)
}

// For returns the credentials for mapping a LUN of the pair to a worker, and creates them if there
// are none; nil: without CHAP. If the worker has other LUNs of the pair, they decide whether it
// uses CHAP, because targets require the same from a worker for all LUNs: sessions without
// credentials would fail at their next login. Otherwise the cluster's spec decides. ErrUnknown,
// ErrTwice, ErrCluster, ErrDamaged.
func (k *Keeper) For(ctx context.Context, pair, iqn string) (*Credentials, error) {
	with, without, err := k.Mapped(ctx, pair, iqn)
	if err != nil {
		return nil, err
	}
	p := &v1alpha1.TargetPair{}
	if err := k.Client.Get(ctx, client.ObjectKey{Name: pair}, p); err != nil {
		return nil, fmt.Errorf("TargetPair %s: %w", pair, err)
	}
	if with == without {
		c := &v1alpha1.StorageCluster{}
		if err := k.Client.Get(ctx, client.ObjectKey{Name: p.Spec.Cluster}, c); apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: StorageCluster %s says whether hosts of pair %s need CHAP: create it again", ErrCluster, p.Spec.Cluster, pair)
		} else if err != nil {
			return nil, fmt.Errorf("StorageCluster %s: %w", p.Spec.Cluster, err)
		}
		without = c.Spec.Security.CHAP == v1alpha1.CHAPNone
	}
	if without {
		return nil, nil
	}
	c, err := k.Get(ctx, pair, iqn)
	if err != nil || c != nil && with {
		return c, err
	}
	// No credentials, or the first LUN of this worker: they must be those of the current worker.
	h, err := k.host(ctx, iqn)
	if err != nil || c != nil && c.Host == h.Name {
		return c, err
	}
	if c != nil {
		if err := k.deleteFormer(ctx, pair, h); err != nil {
			return nil, err
		}
	}
	return k.createFor(ctx, p, h)
}

// Mapped reports whether the worker has LUNs of the pair that are mapped with credentials, and
// without, according to their status.
func (k *Keeper) Mapped(ctx context.Context, pair, iqn string) (with, without bool, err error) {
	iqn = strings.ToLower(iqn)
	units, err := index.Units(ctx, k.Client, index.UnitHost, iqn)
	if err != nil {
		return false, false, fmt.Errorf("LogicalUnits of host %s: %w", iqn, err)
	}
	for i := range units {
		if at := units[i].Spec.Placement; at == nil || at.Pair != pair {
			continue
		}
		for _, h := range units[i].Status.Hosts {
			if h.IQN == iqn {
				with, without = with || h.CHAPUser != "", without || h.CHAPUser == ""
			}
		}
	}
	return with, without, nil
}

// createFor creates the credentials of a worker. After a crash the next call finds the Secret.
func (k *Keeper) createFor(ctx context.Context, p *v1alpha1.TargetPair, h *v1alpha1.Host) (*Credentials, error) {
	iqn := h.Spec.IQN
	c := generate(h.Name, iqn)
	err := k.Create(ctx, c.object(k.Namespace, p.Spec.Cluster, p.Name))
	if apierrors.IsAlreadyExists(err) {
		// A concurrent call for another LUN created it, and the cache is stale.
		again, err := k.read(ctx, k.Live, p.Name, iqn)
		if again == nil && err == nil {
			err = fmt.Errorf("secret %s/%s was deleted meanwhile", k.Namespace, SecretName(p.Name, iqn))
		}
		return again, err
	}
	if err != nil {
		return nil, fmt.Errorf("CHAP credentials of host %s on pair %s: %w", h.Name, p.Name, err)
	}
	if k.Made != nil {
		k.Made(h, p.Name)
	}
	return &c, nil
}

// host returns the only Host with an iSCSI name.
func (k *Keeper) host(ctx context.Context, iqn string) (*v1alpha1.Host, error) {
	found, err := k.Hosts(ctx, iqn)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, fmt.Errorf("%w: no Host object has the iSCSI name %s: check that the node plugin runs on that worker", ErrUnknown, iqn)
	case len(found) > 1:
		return nil, fmt.Errorf("%w: %s is the iSCSI name of %s: give each worker that was created from the same image its own machine-id and an empty state folder of the node plugin",
			ErrTwice, iqn, Names(found))
	}
	return &found[0], nil
}

// Hosts returns the hosts with an iSCSI name, sorted by name.
func (k *Keeper) Hosts(ctx context.Context, iqn string) (out []v1alpha1.Host, err error) {
	list, err := index.Hosts(ctx, k.Client, iqn)
	if err != nil {
		return nil, fmt.Errorf("hosts: %w", err)
	}
	for i := range list {
		out = append(out, *list[i].DeepCopy())
	}
	slices.SortFunc(out, func(a, b v1alpha1.Host) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Names of hosts, for messages.
func Names(hosts []v1alpha1.Host) string {
	var out []string
	for _, h := range hosts {
		out = append(out, h.Name)
	}
	return strings.Join(out, " and ")
}

// RecordMade returns a Keeper.Made that records an event of the Host.
func RecordMade(r events.EventRecorder) func(*v1alpha1.Host, string) {
	return func(h *v1alpha1.Host, pair string) {
		r.Eventf(h, nil, corev1.EventTypeNormal, "CredentialsMade", "Map", "CHAP credentials on pair %s were created", pair)
	}
}
