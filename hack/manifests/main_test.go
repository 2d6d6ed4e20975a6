package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// The committed files are those that the chart renders.
func TestUpToDate(t *testing.T) {
	want, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := generated(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 || !maps.Equal(got, want) {
		t.Error("config/ differs from charts/gemel: run make generate and commit")
	}
}

func TestWriteReplaces(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "charts/gemel"), os.DirFS(filepath.Join(root, "charts/gemel"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config/manager/gone.yaml": header, "config/policy/own.yaml": "kind: Own\n", "config/rbac/operator.yaml": header + "kind: Old\n"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "config/manager/gone.yaml")); !os.IsNotExist(err) {
		t.Errorf("a generated file without a source stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "config/policy/own.yaml")); err != nil {
		t.Errorf("a file that is written by hand: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "config/rbac/operator.yaml")); err != nil || strings.Contains(string(text), "Old") {
		t.Errorf("%s %v", text, err)
	}
}

// An object that has no place in config/ is an error, and one that is made elsewhere is not.
func TestFileOf(t *testing.T) {
	const object = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: gemel-x}\n"
	for template, want := range map[string]string{"operator.yaml": "config/manager/operator.yaml", "crds.yaml": ""} {
		if got, err := fileOf(template, object); got != want || err != nil {
			t.Errorf("%s: %q %v", template, got, err)
		}
	}
	if got, err := fileOf("new.yaml", object); err == nil {
		t.Errorf("%q", got)
	}
}
