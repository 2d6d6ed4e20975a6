package mutate

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Types checks mutants with the type checker, without building them: a mutant that does not build
// shows nothing about the test that has to catch it.
type Types struct {
	root   string
	fset   *token.FileSet
	lookup types.Importer
}

// NewTypes prepares the check of mutants of packages below root. Their dependencies are compiled
// once.
func NewTypes(ctx context.Context, root string, mutants ...[]Edit) (*Types, error) {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	seen := map[string]bool{}
	for _, edits := range mutants {
		for _, e := range edits {
			if dir := "./" + filepath.Dir(e.File); !seen[dir] {
				seen[dir] = true
				args = append(args, dir)
			}
		}
	}
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = root
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	for line := range bytes.Lines(out) {
		path, file, _ := strings.Cut(strings.TrimSpace(string(line)), "\t")
		exports[path] = file
	}
	t := &Types{root: root, fset: token.NewFileSet()}
	t.lookup = importer.ForCompiler(t.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("package %s is not known", path)
		}
		return os.Open(exports[path])
	})
	return t, nil
}

// Check returns the first error of the type checker in the packages that the edits change.
func (t *Types) Check(edits []Edit) error {
	broken, err := carryOut(t.root, edits)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	for path := range broken {
		dirs[filepath.Dir(path)] = true
	}
	for dir := range dirs {
		if err := t.checkDir(dir, broken); err != nil {
			return err
		}
	}
	return nil
}

func (t *Types) checkDir(dir string, broken map[string]string) error {
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return err
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		var src any
		path := filepath.Join(dir, name)
		if text, ok := broken[path]; ok {
			src = text
		}
		f, err := parser.ParseFile(t.fset, path, src, 0)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	_, err = (&types.Config{Importer: t.lookup}).Check(dir, t.fset, files, nil)
	return err
}
