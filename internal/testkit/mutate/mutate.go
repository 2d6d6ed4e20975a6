// Package mutate breaks a program on purpose: it replaces texts of its sources, and leaves the
// sources as they are.
package mutate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrText says that the text of an Edit is not there once: its place has moved, and what it would
// break is not what it broke before.
var ErrText = errors.New("the text to replace must occur exactly once")

// Edit replaces one text of a file by another.
type Edit struct{ File, Old, New string }

// Overlay writes the broken files below dir, their names beginning with name, and returns the file
// that go's -overlay takes. Files of the edits are below root.
func Overlay(root, dir, name string, edits []Edit) (string, error) {
	broken, err := carryOut(root, edits)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range broken {
		replace[path] = filepath.Join(dir, name+"-"+filepath.Base(path))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	raw, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, name+".json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}

// carryOut returns the texts of the files that the edits change, by path.
func carryOut(root string, edits []Edit) (broken map[string]string, err error) {
	broken = map[string]string{}
	for _, e := range edits {
		path := filepath.Join(root, e.File)
		if _, ok := broken[path]; !ok {
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			broken[path] = string(src)
		}
		if n := strings.Count(broken[path], e.Old); n != 1 {
			return nil, fmt.Errorf("%s: %w, it does %d times: %q", e.File, ErrText, n, e.Old)
		}
		broken[path] = strings.Replace(broken[path], e.Old, e.New, 1)
	}
	return broken, nil
}

// ModuleRoot finds the folder of go.mod.
func ModuleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
