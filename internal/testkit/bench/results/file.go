package results

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

// Report is out/bench.json.
type Report struct {
	Commit  string   `json:"commit"`
	Base    string   `json:"base,omitempty"`
	Machine string   `json:"machine"`
	Date    string   `json:"date"`
	Seconds float64  `json:"seconds"`
	Quick   bool     `json:"quick,omitempty"`
	Rows    []Row    `json:"rows"`
	Skipped []string `json:"skipped,omitempty"` // what was not measured, and why
}

// Merge replaces rows of the same name and adds the others.
func (r *Report) Merge(rows []Row) {
	for _, row := range rows {
		found := false
		for i := range r.Rows {
			if r.Rows[i].Name == row.Name {
				r.Rows[i], found = row, true
			}
		}
		if !found {
			r.Rows = append(r.Rows, row)
		}
	}
}

// Row finds one by its name.
func (r *Report) Row(name string) (Row, bool) {
	for _, row := range r.Rows {
		if row.Name == name {
			return row, true
		}
	}
	return Row{}, false
}

// Write writes a report.
func Write(path string, r Report) error { return jsonfile.Write(path, r) }

// Read reads one.
func Read(path string) (r Report, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
