package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kernelReport is what is shown of out/bench-kernel.json (hack/benchkernel).
type kernelReport struct {
	Kernel  string            `json:"kernel"`
	Date    string            `json:"date"`
	Rounds  int               `json:"rounds"`
	Systems map[string]string `json:"systems"`
	Skipped []string          `json:"skipped"`
	Rows    []struct {
		Name    string `json:"name"`
		Systems map[string]struct {
			IOPS kernelFigure `json:"iops"`
			P50  kernelFigure `json:"p50_us"`
			P99  kernelFigure `json:"p99_us"`
		} `json:"systems"`
		Ratios []struct {
			System string  `json:"system"`
			To     string  `json:"to"`
			Median float64 `json:"median"`
			Min    float64 `json:"min"`
			Max    float64 `json:"max"`
		} `json:"ratios"`
		Resolves float64 `json:"resolves"`
	} `json:"rows"`
}

type kernelFigure struct {
	Median float64 `json:"median"`
}

// kernelText is the page's part with the targets of the kernel; it stays as it is when that
// benchmark was not run.
func kernelText(from string) (string, bool, error) {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(from), "bench-kernel.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	var r kernelReport
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		return "", false, fmt.Errorf("bench-kernel.json: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s in the guests, %s, %d rounds.\n\n| system | what it is |\n|---|---|\n", r.Kernel, strings.SplitN(r.Date, "T", 2)[0], r.Rounds)
	for _, name := range keys(r.Systems) {
		fmt.Fprintf(&b, "| %s | %s |\n", name, r.Systems[name])
	}
	b.WriteString("\n| load | system | against | ratio | least..most | differs from 1 beyond a factor of |\n|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		for _, x := range row.Ratios {
			ratio := Number(x.Median)
			if x.Median < row.Resolves && x.Median > 1/row.Resolves {
				ratio = "(" + ratio + ")"
			} else if x.Median < 1 {
				ratio = "**" + ratio + "**"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s..%s | %s |\n", row.Name, x.System, x.To, ratio, Number(x.Min), Number(x.Max), Number(row.Resolves))
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, "\nNot measured: %s.\n", s)
	}
	return b.String(), true, nil
}
