// Package lists counts the lists of all objects of a kind. In a reconcile such a list costs as much
// as there are objects, at each of them: what grows with their square is found here before it is
// felt.
package lists

import (
	"context"
	"reflect"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var whole = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_operator_whole_lists_total",
	Help: "Lists of all objects of a kind, without a selector of labels or fields, by the reconcilers."}, []string{"kind"})

func init() { metrics.Registry.MustRegister(whole) }

// Client counts the lists of a client.
func Client(c client.Client) client.Client { return counting{c} }

type counting struct{ client.Client }

func (c counting) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	count(l, opts)
	return c.Client.List(ctx, l, opts...)
}

// Reader counts the lists of a reader.
func Reader(r client.Reader) client.Reader { return reading{r} }

type reading struct{ client.Reader }

func (r reading) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	count(l, opts)
	return r.Reader.List(ctx, l, opts...)
}

func count(l client.ObjectList, opts []client.ListOption) {
	var o client.ListOptions
	o.ApplyOptions(opts)
	selects := o.LabelSelector != nil && !o.LabelSelector.Empty() || o.FieldSelector != nil && !o.FieldSelector.Empty()
	if !selects {
		whole.WithLabelValues(kindOf(l)).Inc()
	}
}

// kindOf is the kind of the objects of a list.
func kindOf(l client.ObjectList) string {
	kind := l.GetObjectKind().GroupVersionKind().Kind // of unstructured objects and of metadata
	if kind == "" {
		kind = reflect.TypeOf(l).Elem().Name()
	}
	return strings.TrimSuffix(kind, "List")
}
