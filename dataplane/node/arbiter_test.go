package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A Lease without a way to the API server is refused with what to do, before the store is touched.
func TestOpenLease(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	c := goodConfig()
	c.Arbiter, c.StateDir = "lease:gemel/p0", filepath.Join(t.TempDir(), "state")
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "set a kubeconfig file") {
		t.Errorf("%v", err)
	}
	c.Kubeconfig = filepath.Join(t.TempDir(), "none")
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), c.Kubeconfig) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(c.StateDir); err == nil {
		t.Error("the store was made")
	}
}
