package lease

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

func TestParseRef(t *testing.T) {
	if ns, n, err := ParseRef("gemel-system/pair-p0.x"); err != nil || ns != "gemel-system" || n != "pair-p0.x" {
		t.Errorf("%q %q %v", ns, n, err)
	}
	for _, s := range []string{"", "p0", "/p0", "gemel/", "gemel/p0/x", "Gemel/p0", "gemel/..", "gemel/-p", "ge.mel/p", "gemel/" + strings.Repeat("a", 254)} {
		if _, _, err := ParseRef(s); !errors.Is(err, ErrRef) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestBadEndpointsAreRefused(t *testing.T) {
	for _, s := range []string{"10.0.0.1:6443", "http://10.0.0.1", "https://", "https://u:p@h", "https://h?x"} {
		if _, err := New(&rest.Config{Host: "https://h"}, Options{Endpoints: []string{s}}); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
	c, err := New(&rest.Config{Host: "https://h:6443/"}, Options{Endpoints: []string{"https://h:6443", "https://[::1]:6443/x/"}})
	if err != nil || len(c.pool.list) != 2 || c.pool.list[1].url != "https://[::1]:6443/x" {
		t.Errorf("%v", err)
	}
}

func TestLoadNeedsAKubeconfigOutsideAPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, _, err := Load(""); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("%v", err)
	}
	file := filepath.Join(t.TempDir(), "config")
	text := `{apiVersion: v1, kind: Config, clusters: [{name: k, cluster: {server: "https://192.0.2.1:6443", tls-server-name: api}}],
users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: k, user: u}}], current-context: c}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, inside, err := Load(file)
	if err != nil || inside || cfg.Host != "https://192.0.2.1:6443" || cfg.ServerName != "api" {
		t.Errorf("%+v %v", cfg, err)
	}
	if _, _, err := Load(file + "x"); err == nil {
		t.Error("a file that is not there")
	}
}
