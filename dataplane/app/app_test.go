package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// run executes the command line and returns its error; every case here fails before anything is
// served.
func run(t *testing.T, args ...string) error {
	t.Helper()
	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetContext(t.Context())
	return cmd.Execute()
}

func TestEveryBadFlagIsNamed(t *testing.T) {
	err := run(t, "--cluster", "No Good", "--node", "c", "--iscsi-listen", "nowhere", "--arbiter", "etcd", "--portal", "a",
		"--control-listen", "10.0.0.1:1", "--lease", "1ms")
	if err == nil {
		t.Fatal("it must not start")
	}
	for _, field := range []string{"cluster", "pair", "node", "state-dir", "arbiter", "iscsi-listen", "portal", "control-listen", "lease"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	write := func(content string) string {
		path := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for content, want := range map[string]string{
		"clutser: x\n":                    `"clutser"`,
		"cluster: [\n":                    "config",
		"lease: soon\n":                   "lease",
		"header-digest: sometimes\n":      "header-digest",
		"config: other\n":                 `"config"`,
		"cluster: fine\npair: NOT FINE\n": "pair:",
	} {
		if err := run(t, "--config", write(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want it to name %s", content, err, want)
		}
	}
	// A flag on the command line wins over the file.
	err := run(t, "--config", write("cluster: FILE\npair: p\n"), "--cluster", "flag")
	if err == nil || strings.Contains(err.Error(), "FILE") {
		t.Errorf("the file's value won: %v", err)
	}
	if err := run(t, "--config", filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing file must be an error")
	}
}
