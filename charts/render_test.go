package charts

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load("gemel")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render is Render of the chart, decoded; set is as in --set, without lists.
func render(t *testing.T, set map[string]any, apis ...string) ([]client.Object, error) {
	t.Helper()
	files, err := Render("gemel", nested(set), apis...)
	if err != nil {
		return nil, err
	}
	var out []client.Object
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			out = append(out, decode(t, name, text)...)
		}
	}
	if len(out) == 0 {
		t.Fatal("nothing was rendered")
	}
	return out, nil
}

func mustRender(t *testing.T, set map[string]any, apis ...string) []client.Object {
	t.Helper()
	out, err := render(t, set, apis...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// nested turns "a.b": 1 into {a: {b: 1}}.
func nested(set map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range set {
		m, parts := out, strings.Split(k, ".")
		for _, p := range parts[:len(parts)-1] {
			if m[p] == nil {
				m[p] = map[string]any{}
			}
			m = m[p].(map[string]any)
		}
		m[parts[len(parts)-1]] = v
	}
	return out
}

// scheme of everything that may be installed.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, snapshotv1.AddToScheme, groupsnapshotv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // compiled in
		}
	}
	return s
}()

// decode reads manifests as the API server does with strict validation: a field that does not
// exist, or comes twice, is an error.
func decode(t *testing.T, name, text string) (out []client.Object) {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if empty(string(doc)) {
			continue
		}
		o, kind, err := strict.Decode(doc, nil, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, doc)
			continue
		}
		o.GetObjectKind().SetGroupVersionKind(*kind)
		out = append(out, o.(client.Object))
	}
}

// empty documents are those of which a condition has left a comment, or nothing.
func empty(doc string) bool {
	for line := range strings.Lines(doc) {
		if s := strings.TrimSpace(line); s != "" && s != "---" && !strings.HasPrefix(s, "#") {
			return false
		}
	}
	return true
}

// all objects of a type.
func all[T client.Object](objs []client.Object) (out []T) {
	for _, o := range objs {
		if x, ok := o.(T); ok {
			out = append(out, x)
		}
	}
	return out
}

func one[T client.Object](t *testing.T, objs []client.Object, name string) T {
	t.Helper()
	list := slices.DeleteFunc(all[T](objs), func(o T) bool { return o.GetName() != name })
	if len(list) != 1 {
		t.Fatalf("%d objects %T %s", len(list), *new(T), name)
	}
	return list[0]
}

func container(t *testing.T, p *corev1.PodSpec, name string) *corev1.Container {
	t.Helper()
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	t.Fatalf("no container %s", name)
	return nil
}

func hasContainer(p *corev1.PodSpec, name string) bool {
	return slices.ContainsFunc(p.Containers, func(c corev1.Container) bool { return c.Name == name })
}

// userspace is what kind has, with holders.
func userspace(more map[string]any) map[string]any {
	out := map[string]any{"node.attach": "userspace"}
	for k, v := range more {
		out[k] = v
	}
	return out
}
