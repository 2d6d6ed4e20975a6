// Package apply turns manifests that are kept as templates into objects, and applies them
// server-side. A manifest shows the fields that Gemel owns, and no others; fields that other
// managers have set stay.
package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Set is a folder of manifests. In a template, json writes a value so that nothing in it can end
// it.
type Set struct{ t *template.Template }

// Parse reads every file of pattern. It is called with files that are compiled in: a mistake in
// them ends the program.
func Parse(files fs.FS, pattern string) *Set {
	return &Set{template.Must(template.New("").Option("missingkey=error").Funcs(template.FuncMap{"json": toJSON}).ParseFS(files, pattern))}
}

func toJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// Render gives the objects of one file, in order.
func (s *Set) Render(name string, data any) ([]*unstructured.Unstructured, error) {
	var b bytes.Buffer
	if err := s.t.ExecuteTemplate(&b, name, data); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	var out []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(&b, 4096); ; {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", name, err)
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}

// Objects applies objects for a field manager, taking the fields over from the managers that have
// them.
func Objects(ctx context.Context, c client.Client, manager string, objs ...*unstructured.Unstructured) error {
	var errs []error
	for _, u := range objs {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership); err != nil {
			errs = append(errs, fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// Typed turns an object of Go into one that Objects takes.
func Typed(o client.Object, scheme *runtime.Scheme) (*unstructured.Unstructured, error) {
	gvk, err := apiutil.GVKForObject(o, scheme)
	if err != nil {
		return nil, err
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(gvk)
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u, nil
}
