package userspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLimitNamesTheLimitingResource(t *testing.T) {
	for _, c := range []struct {
		memory, threads, mounts string
		n                       int64
		by                      string
	}{
		{"MemFree: 5 kB\nMemTotal:       24685212 kB\n", "4194304", "100000", 376, "memory"},
		{"MemTotal: 1073741824 kB\n", "32768", "100000", 682, "threads"},
		{"MemTotal: 1073741824 kB\n", "4194304", "2000", 250, "mounts"},
		{"MemTotal: 99999999999 kB\n", "999999999", "999999999", loopMinors, "loop"},
		{"MemTotal: 16384 kB\n", "32768", "100000", 1, "memory"}, // at least one on any machine
	} {
		dir := t.TempDir()
		for name, content := range map[string]string{"meminfo": c.memory, "sys/kernel/pid_max": c.threads + "\n", "sys/fs/mount-max": c.mounts + "\n"} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n, by, err := limit(dir)
		if err != nil || n != c.n || !strings.HasPrefix(by, c.by) {
			t.Errorf("%+v: %d by %s, %v", c, n, by, err)
		}
	}
	if n, by, err := Limit(); err != nil || n < 1 {
		t.Errorf("this machine: %d by %s, %v", n, by, err)
	}
	if _, _, err := limit(t.TempDir()); err == nil {
		t.Error("a limit out of nothing")
	}
}
