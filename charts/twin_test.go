package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// build is `kubectl kustomize FOLDER`.
func build(t *testing.T, folder string) []client.Object {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatal(err)
	}
	text, err := m.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, folder, string(text))
}

// plain is an object without what tells its installer, by kind and name.
func plain(t *testing.T, objs []client.Object) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, o := range objs {
		o = o.DeepCopyObject().(client.Object)
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var m any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		forget(m)
		if b, err = json.MarshalIndent(m, "", " "); err != nil {
			t.Fatal(err)
		}
		out[o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetNamespace()+"/"+o.GetName()] = string(b)
	}
	return out
}

// forget takes the labels and annotations away that only a release has, wherever they are, and
// metadata that is empty then.
func forget(x any) {
	switch x := x.(type) {
	case []any:
		for _, v := range x {
			forget(v)
		}
	case map[string]any:
		for _, k := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/resource-policy", "creationTimestamp"} {
			delete(x, k)
		}
		for k, v := range x {
			forget(v)
			if m, ok := v.(map[string]any); ok && len(m) == 0 && (k == "annotations" || k == "labels") {
				delete(x, k)
			}
		}
	}
}

// config/default builds, and is what the chart installs by default, with the namespace that Helm
// creates. Most of it is generated from the chart; what is not is checked here: the lists of
// files, and the CRDs and policies of which the chart has copies.
func TestKustomizeIsTheChart(t *testing.T) {
	theirs := build(t, "../config/default")
	n := len(theirs)
	theirs = slices.DeleteFunc(theirs, func(o client.Object) bool { _, ok := o.(*corev1.Namespace); return ok })
	if n-len(theirs) != 1 {
		t.Errorf("config/default has %d namespaces", n-len(theirs))
	}
	chart, config := plain(t, mustRender(t, nil)), plain(t, theirs)
	for _, name := range slices.Sorted(maps.Keys(chart)) {
		if config[name] != chart[name] {
			t.Errorf("%s differs:\nchart:\n%s\nconfig:\n%s", name, chart[name], config[name])
		}
		delete(config, name)
	}
	for name := range config {
		t.Errorf("the chart lacks %s", name)
	}
}

// The samples can be applied as they are, with the classes that they name.
func TestSamplesDecode(t *testing.T) {
	files, err := os.ReadDir("../config/samples")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile("../config/samples/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if len(decode(t, f.Name(), string(text))) == 0 {
			t.Errorf("%s is empty", f.Name())
		}
	}
}

// rights of a rule as lines "API/RESOURCE[NAMES]: VERBS".
func rights(rules []rbacv1.PolicyRule) (out []string) {
	for _, r := range rules {
		for _, g := range r.APIGroups {
			for _, x := range r.Resources {
				if g != "" {
					x = g + "/" + x
				}
				if len(r.ResourceNames) > 0 {
					x += "[" + strings.Join(r.ResourceNames, ",") + "]"
				}
				out = append(out, "  "+x+": "+strings.Join(r.Verbs, " "))
			}
		}
	}
	slices.Sort(out)
	return out
}

// The list of rights is complete, and has no wildcards. Everyone who changes a right reads the
// list.
func TestRightsAreThoseOfTheList(t *testing.T) {
	var b strings.Builder
	objs := mustRender(t, userspace(nil))
	say := func(kind string, o client.Object, rules []rbacv1.PolicyRule) {
		fmt.Fprintf(&b, "%s %s\n%s\n", kind, o.GetName(), strings.Join(rights(rules), "\n"))
		for _, r := range rules {
			if len(r.NonResourceURLs) > 0 || slices.Contains(slices.Concat(r.Verbs, r.APIGroups, r.Resources), "*") {
				t.Errorf("%s: %+v", o.GetName(), r)
			}
		}
	}
	byName := func(x, y client.Object) int { return strings.Compare(x.GetName(), y.GetName()) }
	roles, clusterRoles := all[*rbacv1.Role](objs), all[*rbacv1.ClusterRole](objs)
	slices.SortFunc(roles, func(x, y *rbacv1.Role) int { return byName(x, y) })
	slices.SortFunc(clusterRoles, func(x, y *rbacv1.ClusterRole) int { return byName(x, y) })
	bound := map[string]bool{}
	for _, r := range all[*rbacv1.RoleBinding](objs) {
		bound[r.RoleRef.Kind+r.RoleRef.Name] = true
	}
	for _, r := range all[*rbacv1.ClusterRoleBinding](objs) {
		bound[r.RoleRef.Kind+r.RoleRef.Name] = true
	}
	for _, r := range clusterRoles {
		say("ClusterRole", r, r.Rules)
	}
	for _, r := range roles {
		say("Role", r, r.Rules)
	}
	if len(bound) != len(roles)+len(clusterRoles) {
		t.Errorf("roles and bindings do not match: %v", bound)
	}
	const file = "testdata/rights.txt"
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("charts/%s is to be, if that is meant:\n%s", file, b.String())
	}
}
