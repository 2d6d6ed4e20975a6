package envtest

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Scheme has the kinds of Kubernetes and Gemel's, for one test. Adding Gemel's to the scheme of
// client-go itself would be a data race: recorders of events read that one, also those which an
// earlier test of the same binary has started.
func Scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}
