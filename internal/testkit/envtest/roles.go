package envtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// systemNamespace is the one that the files in config/ name.
const systemNamespace = "gemel-system"

// Install makes the objects of a file of config/ as if it were written for a namespace; what lies
// in none gets the namespace's name too, so that several tests can have theirs.
func Install(t testing.TB, cfg *rest.Config, namespace, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(bytes.ReplaceAll(text, []byte(systemNamespace), []byte(namespace))), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if strings.HasPrefix(u.GetKind(), "ClusterRole") {
			u.SetName(u.GetName() + "-" + namespace)
			if ref, ok, _ := unstructured.NestedString(u.Object, "roleRef", "name"); ok {
				_ = unstructured.SetNestedField(u.Object, ref+"-"+namespace, "roleRef", "name")
			}
		}
		if err := c.Create(context.Background(), u); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

// Operator is cfg with what the operator may do in a namespace, and no more, by
// config/rbac/operator.yaml in folder.
func Operator(t testing.TB, cfg *rest.Config, namespace, folder string) *rest.Config {
	t.Helper()
	Install(t, cfg, namespace, folder+"/operator.yaml")
	as := As(cfg, namespace, "gemel-operator")
	k := kubernetes.NewForConfigOrDie(as)
	// The authorizer hears of roles a moment later.
	for _, want := range []authorizationv1.ResourceAttributes{
		{Namespace: namespace, Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
		{Verb: "create", Group: "gemel.storage", Resource: "targetpairs"},
	} {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			r, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(context.Background(),
				&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &want}}, metav1.CreateOptions{})
			if err == nil && r.Status.Allowed {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the operator may not %s %s: %v", want.Verb, want.Resource, err)
			}
		}
	}
	return as
}
