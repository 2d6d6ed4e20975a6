package results

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// PrintTable writes rows for a terminal.
func PrintTable(w io.Writer, list []Row) {
	fmt.Fprintf(w, "\n%-36s %11s %11s %7s %-13s %-6s %27s  %s\n", "", "gemel", "peer", "ratio", "A/A", "unit", "p50 / p99 / p99.9 ms", "cpu us/op")
	for _, r := range list {
		fmt.Fprintf(w, "%-36s %11s %11s %7s %-13s %-6s %27s  %s\n", r.Name, Number(r.Gemel), pointer(r.Peer), r.ratioText(), r.controlText(), r.Unit,
			r.latencyText(), cpuText(r.GemelCPU))
	}
	fmt.Fprintln(w, "\nA ratio above 1 means that Gemel is better; A/A is the same case against itself in the same rounds. (x): a ratio in parentheses is not claimed.")
}

func (r Row) ratioText() string {
	switch {
	case r.Ratio == nil:
		return "-"
	case r.Resolved != nil && !*r.Resolved:
		return fmt.Sprintf("(%.2f)", *r.Ratio)
	}
	return fmt.Sprintf("%.2f", *r.Ratio)
}

func (r Row) controlText() string {
	if r.Control == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f..%.2f", r.Control.Min, r.Control.Max)
}

func (r Row) latencyText() string {
	if r.Gemels == nil {
		return "-"
	}
	l := r.Gemels
	return fmt.Sprintf("%s / %s / %s", Number(l.P50/1000), Number(l.P99/1000), Number(l.P999/1000))
}

func cpuText(m map[string]float64) string {
	var parts []string
	for _, name := range keys(m) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, m[name]))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// keys of a map, in order.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func pointer(v *float64) string {
	if v == nil {
		return "-"
	}
	return Number(*v)
}

// Number prints three digits that count, and no more.
func Number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// PrintRows writes rows shortly, as they are found.
func PrintRows(list []Row) {
	for _, r := range list {
		peer := ""
		if r.Ratio != nil {
			peer = fmt.Sprintf("  %s times %s's %s (A/A %s)", r.ratioText(), r.PeerName, pointer(r.Peer), r.controlText())
		}
		fmt.Printf("    %-36s %s %s%s\n", r.Name, Number(r.Gemel), r.Unit, peer)
	}
}
