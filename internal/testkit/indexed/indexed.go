// Package indexed gives reconcilers that are tested without a cache what the operator's cache gives
// them: lists by the indexes of package index.
package indexed

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/gemel-storage/gemel/controllers/index"
)

// Client is c, with lists by the indexes.
func Client(c client.Client) client.Client { return indexed{c} }

type indexed struct{ client.Client }

// List lists everything and keeps what an index has under the value; an unknown field is an error
// of the API server, as ever.
func (c indexed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if o.FieldSelector == nil || len(o.FieldSelector.Requirements()) != 1 {
		return c.Client.List(ctx, list, opts...)
	}
	q := o.FieldSelector.Requirements()[0]
	kind, err := apiutil.GVKForObject(list, c.Scheme())
	if err != nil {
		return err
	}
	var keys client.IndexerFunc
	index.Each(func(of client.Object, name string, f client.IndexerFunc) {
		if name == q.Field && reflect.TypeOf(of).Elem().Name()+"List" == kind.Kind {
			keys = f
		}
	})
	if keys == nil {
		return c.Client.List(ctx, list, opts...)
	}
	all := *o
	all.FieldSelector = nil
	if err := c.Client.List(ctx, list, &all); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("list of %s: %w", kind.Kind, err)
	}
	return meta.SetList(list, slices.DeleteFunc(items, func(x runtime.Object) bool {
		o, ok := x.(client.Object)
		return !ok || !slices.Contains(keys(o), q.Value)
	}))
}
