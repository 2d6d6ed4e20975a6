package report

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Write writes figures as JSON for people and machines, and makes the folder of the file.
func Write(path string, figures any) error {
	b, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
