// Package layers has no code. Its tests hold the structure of the module: what the pure packages
// may import, and which way imports point.
package layers

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/gemel-storage/gemel/"

// layers are the folders of the module, from the bottom to the top. A package imports from its own
// layer and from those below it; a folder that is named twice belongs to the line with the longer
// name.
var layers = [][]string{
	{"api", "config", "charts", "internal"},
	{"placement", "initiator", "dataplane"},
	{"csi", "controllers"},
	{"cmd"},
	{"internal/testkit", "dataplane/sim", "dataplane/nodesim", "dataplane/balancesim", "dataplane/tieringsim"},
	{"hack", "e2e", "test"},
}

// apart are folders of one layer of which none imports another.
var apart = []string{"dataplane", "initiator", "csi", "controllers", "cmd"}

// file is what a Go file imports.
type file struct {
	path    string // relative to the module
	test    bool
	imports []string
}

func (f *file) pkg() string { return path.Dir(f.path) }

// files reads all Go files of the module; those of modules within it are left out.
func files(t *testing.T) (list []*file) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, other := os.Stat(filepath.Join(p, "go.mod"))
			if rel != "." && (other == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		f := &file{path: filepath.ToSlash(rel), test: strings.HasSuffix(rel, "_test.go")}
		for _, i := range parsed.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, name)
		}
		list = append(list, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 500 {
		t.Fatalf("only %d files were found", len(list))
	}
	return list
}

func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// layerOf is the number of the layer of a package, and the folder that says so.
func layerOf(pkg string) (layer int, folder string) {
	layer = -1
	for i, folders := range layers {
		for _, f := range folders {
			if within(pkg, f) && len(f) > len(folder) {
				layer, folder = i, f
			}
		}
	}
	return layer, folder
}

// TestImportsPointDown: the code of a package imports nothing from a layer above, nor from a folder
// of its own layer that is to know nothing of it. Tests may use all of the product and the test
// kit, see TestNothingImportsPrograms.
func TestImportsPointDown(t *testing.T) {
	for _, f := range files(t) {
		from, folder := layerOf(f.pkg())
		if from < 0 {
			t.Errorf("%s is in no layer: name its folder in layers", f.path)
			continue
		}
		if f.test {
			continue
		}
		for _, i := range f.imports {
			pkg, ours := strings.CutPrefix(i, module)
			if !ours {
				continue
			}
			to, other := layerOf(pkg)
			switch {
			case to > from:
				t.Errorf("%s imports %s, which is above it", f.path, pkg)
			case to == from && folder != other && slices.Contains(apart, folder) && slices.Contains(apart, other):
				t.Errorf("%s imports %s: the two are to know nothing of each other", f.path, pkg)
			}
		}
	}
}

// TestNothingImportsPrograms: hack, e2e and test have programs and suites, which only they
// themselves may share; what tests elsewhere need is in internal/testkit.
func TestNothingImportsPrograms(t *testing.T) {
	programs := layers[len(layers)-1]
	for _, f := range files(t) {
		for _, i := range f.imports {
			pkg, ours := strings.CutPrefix(i, module)
			for _, folder := range programs {
				if ours && within(pkg, folder) && !within(f.pkg(), folder) {
					t.Errorf("%s imports %s: move what it needs to internal/testkit", f.path, pkg)
				}
			}
		}
	}
}

// pure are packages, or files of one, that decide and do nothing: no clock, no socket, no disk, no
// goroutine. With each is all that it may import: more has to be argued for here.
var pure = map[string][]string{
	"dataplane/rangelock": {"iter"},
	"dataplane/pair": {"bytes", "cmp", "encoding/binary", "encoding/json", "errors", "fmt", "iter", "maps", "math/bits", "slices",
		"time", // durations
		module + "dataplane/rangelock", module + "dataplane/scsi"},
	"dataplane/balance":                 {"cmp", "fmt", "math", "slices", "time"},                                                                    // durations
	"dataplane/tiering":                 {"cmp", "maps", "math", "slices", "sync/atomic", "time"},                                                    // durations
	"dataplane/work":                    {"cmp", "iter", "maps", "math", "slices", "time", module + "dataplane/balance", module + "dataplane/count"}, // durations
	"internal/alua":                     {},
	"internal/stripe":                   {"errors", "fmt", "iter", "math/bits", "strings"},
	"placement":                         {"cmp", "errors", "fmt", "slices", "strings", module + "api/v1alpha1"},
	"csi/attach/kernel/plan.go":         {"fmt", "net/netip", "slices", module + "csi/attach"},
	"csi/attach/kernel/plan_absent.go":  {"fmt", "strings", module + "csi/attach"},
	"csi/attach/kernel/plan_present.go": {"fmt", "slices", "strings", module + "csi/attach"},
}

// below is what pure packages import of this module, with all that those import of it: so that
// nothing comes in by a detour.
var below = map[string][]string{
	"dataplane/balance": {},
	"dataplane/count":   {},
	"dataplane/scsi":    {"internal/alua"},
	"internal/alua":     {},
	"csi/attach":        {"internal/alua", "internal/stripe"},
	"internal/stripe":   {},
}

func TestPurePackages(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range files(t) {
		if f.test {
			continue
		}
		for _, name := range []string{f.path, f.pkg()} {
			may, is := pure[name]
			if !is {
				continue
			}
			seen[name] = true
			for _, i := range f.imports {
				if !slices.Contains(may, i) {
					t.Errorf("%s imports %s, which %s may not", f.path, i, name)
				}
			}
		}
		if may, is := below[f.pkg()]; is {
			for _, i := range f.imports {
				if pkg, ours := strings.CutPrefix(i, module); ours && !slices.Contains(may, pkg) {
					t.Errorf("%s imports %s: a pure package imports %s, and would reach it", f.path, pkg, f.pkg())
				}
			}
		}
	}
	for name := range pure {
		if !seen[name] {
			t.Errorf("%s is not there", name)
		}
	}
}
