// Package jsonfile writes what a run found, as JSON for people and CI.
package jsonfile

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Write writes v to path, indented and ended by a newline, and makes the folder if it is missing.
func Write(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
