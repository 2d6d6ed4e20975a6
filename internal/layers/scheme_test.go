package layers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The scheme of client-go is shared by all of a process, and recorders of events read it at any
// time: what is to know more kinds has a scheme of its own.
func TestNothingUsesTheSchemeOfClientGo(t *testing.T) {
	const shared = "scheme" + ".Scheme"
	for _, f := range files(t) {
		if !slices.Contains(f.imports, "k8s.io/client-go/kubernetes/scheme") {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", "..", f.path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), shared) {
			t.Errorf("%s uses %s of client-go: use a scheme of its own (in tests envtest.Scheme)", f.path, shared)
		}
	}
}
