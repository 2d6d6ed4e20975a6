// Package index has the indexes of the operator's cache over objects of which a cluster has
// thousands. A reconcile that listed all of them would cost what the whole cluster costs; one that
// looks them up by an index costs what it concerns.
package index

import (
	"context"
	"errors"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Fields to list by with client.MatchingFields.
const (
	// UnitPair is the pair of a LogicalUnit: one, unless it is a volume that is striped over
	// several. The API server selects by it too.
	UnitPair = v1alpha1.FieldPair
	// UnitHost is the iSCSI name, in lower case, of each host that the spec or the status of a
	// LogicalUnit lists.
	UnitHost = "gemel.host"
	// UnitUnplaced is the cluster of a LogicalUnit without a placement.
	UnitUnplaced = "gemel.unplaced"
	// HostIQN is the iSCSI name of a Host, in lower case. The API server selects by it too, as it
	// is written.
	HostIQN = "spec.iqn"
)

// field is one index.
type field struct {
	of   func() client.Object
	name string
	keys client.IndexerFunc
}

var fields = []field{
	{unit, UnitPair, ofUnit(func(lu *v1alpha1.LogicalUnit) []string { return lu.Spec.Placement.Pairs() })},
	{unit, UnitHost, ofUnit(hosts)},
	{unit, UnitUnplaced, ofUnit(unplaced)},
	{func() client.Object { return &v1alpha1.Host{} }, HostIQN, func(o client.Object) []string {
		if h, ok := o.(*v1alpha1.Host); ok {
			return []string{strings.ToLower(h.Spec.IQN)}
		}
		return nil
	}},
}

func unit() client.Object { return &v1alpha1.LogicalUnit{} }

func ofUnit(keys func(*v1alpha1.LogicalUnit) []string) client.IndexerFunc {
	return func(o client.Object) []string {
		if lu, ok := o.(*v1alpha1.LogicalUnit); ok {
			return keys(lu)
		}
		return nil
	}
}

// hosts of the spec and of the status. A host that is being fenced is in the status only, one that
// is about to be mapped in the spec only.
func hosts(lu *v1alpha1.LogicalUnit) (out []string) {
	seen := map[string]bool{}
	add := func(iqn string) {
		if iqn = strings.ToLower(iqn); !seen[iqn] {
			seen[iqn] = true
			out = append(out, iqn)
		}
	}
	for _, h := range lu.Spec.Hosts {
		add(h.IQN)
	}
	for _, h := range lu.Status.Hosts {
		add(h.IQN)
	}
	return out
}

func unplaced(lu *v1alpha1.LogicalUnit) []string {
	if lu.Spec.Placement != nil {
		return nil
	}
	return []string{lu.Spec.Cluster}
}

// Each calls f with every index, for a client that tests use.
func Each(f func(client.Object, string, client.IndexerFunc)) {
	for _, x := range fields {
		f(x.of(), x.name, x.keys)
	}
}

// Add adds every index to the cache of a manager, before it starts. It is called once.
func Add(ctx context.Context, to client.FieldIndexer) error {
	var errs []error
	Each(func(o client.Object, name string, keys client.IndexerFunc) {
		errs = append(errs, to.IndexField(ctx, o, name, keys))
	})
	return errors.Join(errs...)
}

// Units lists the LogicalUnits with a value of an index, from a cache: they must not be changed.
func Units(ctx context.Context, c client.Reader, name, value string) ([]v1alpha1.LogicalUnit, error) {
	var l v1alpha1.LogicalUnitList
	if err := c.List(ctx, &l, client.MatchingFields{name: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Hosts lists the Hosts with an iSCSI name, in upper or lower case, from a cache: they must not be
// changed.
func Hosts(ctx context.Context, c client.Reader, iqn string) ([]v1alpha1.Host, error) {
	var l v1alpha1.HostList
	if err := c.List(ctx, &l, client.MatchingFields{HostIQN: strings.ToLower(iqn)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	return l.Items, nil
}
