package results

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot/plotter"
)

// Markers in docs/benchmarks.md: the text between a pair of them is replaced, everything else is
// written by people.
const (
	beginMark = "<!-- begin %s: made by `make bench-docs` -->"
	endMark   = "<!-- end %s -->"
)

// WriteDocs writes tables and plots of a report into dir/benchmarks.md, between its markers, and
// dir/benchmarks/*.svg. With merge the report is of some cases only: rows that it does not have
// stay, its own name their commit, and plots of many rows are not drawn.
func WriteDocs(from, dir string, merge bool) error {
	r, err := Read(from)
	if err != nil {
		return fmt.Errorf("%w (make bench writes it)", err)
	}
	page := filepath.Join(dir, "benchmarks.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	plots := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	made, err := writePlots(plots, r, merge)
	if err != nil {
		return fmt.Errorf("plots: %w", err)
	}
	sections := map[string]string{}
	if !merge {
		sections["run"] = runText(r)
	}
	for name, file := range made {
		sections["plot "+name] = fmt.Sprintf("![%s](benchmarks/%s)", name, file)
	}
	for _, t := range tables {
		body := t.markdown(r)
		if merge || t.apart {
			body = mergeRows(section(text, "table "+t.name), body, r.Commit)
		}
		sections["table "+t.name] = body
	}
	if body, ok, err := kernelText(from); err != nil {
		return err
	} else if ok {
		sections["kernel"] = body
	}
	for name, body := range sections {
		if text, err = replaceSection(text, name, body); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return os.WriteFile(page, text, 0o644)
}

// replaceSection puts text between the markers of a name.
func replaceSection(text []byte, name, body string) ([]byte, error) {
	begin, end := fmt.Appendf(nil, beginMark, name), fmt.Appendf(nil, endMark, name)
	i, j := bytes.Index(text, begin), bytes.Index(text, end)
	if i < 0 || j < i {
		return nil, fmt.Errorf("the markers %q and %q are missing", begin, end)
	}
	return slices.Concat(text[:i], begin, []byte("\n"), []byte(strings.TrimSpace(body)), []byte("\n"), text[j:]), nil
}

// section is the text between the markers of a name.
func section(text []byte, name string) string {
	_, after, _ := strings.Cut(string(text), fmt.Sprintf(beginMark, name))
	body, _, _ := strings.Cut(after, fmt.Sprintf(endMark, name))
	return strings.TrimSpace(body)
}

// mergeRows puts rows of a table into one that is there: in place of those of the same name, or at
// its end. They name their commit behind their name.
func mergeRows(old, more, commit string) string {
	key := func(line string) string { // the row's name; empty: no row
		name, ok := strings.CutPrefix(line, "| `")
		if !ok {
			return ""
		}
		name, _, _ = strings.Cut(name, "`")
		return name
	}
	lines := strings.Split(old, "\n")
	if old == "" {
		lines = strings.Split(more, "\n")[:2] // the head
	}
	for _, line := range strings.Split(more, "\n") {
		name := key(line)
		if name == "" {
			continue
		}
		line = strings.Replace(line, "`"+name+"`", fmt.Sprintf("`%s` (`%s`)", name, commit), 1)
		if i := slices.IndexFunc(lines, func(x string) bool { return key(x) == name }); i >= 0 {
			lines[i] = line
		} else {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func runText(r Report) string {
	s := fmt.Sprintf("Commit `%s`, %s, %s; %.0f minutes.", r.Commit, r.Date, r.Machine, r.Seconds/60)
	for _, x := range r.Skipped {
		s += "\n\nNot measured: " + x + "."
	}
	return s
}

// table is one of the page: the rows whose names begin with one of the prefixes and hold none of
// the texts of without.
type table struct {
	name            string
	prefix, without []string
	values          bool // show the further figures
	apart           bool // its rows are never part of a run of everything, so that such a run leaves them
}

var tables = []table{
	{name: "write", prefix: []string{"mirrored_write_4k_qd1", "mirrored_write_4k_qd4", "mirrored_write_4k_qd16", "mirrored_write_4k_qd32", "mirrored_write_4k_qd128", "mtls_to_plain"},
		without: []string{"luns", "sessions", "10m"}},
	{name: "long", prefix: []string{"mirrored_write_4k_qd16_10m"}, values: true, apart: true},
	{name: "durable", prefix: []string{"fua", "write_and_flush", "first_write", "partner_lost_qd", "write_during_resync", "write_during_scrub"}},
	{name: "read", prefix: []string{"randread_4k_qd", "cached_read"}, without: []string{"cold", "5ms"}},
	{name: "shapes", prefix: []string{"mixed", "randread_16k", "mirrored_write_16k", "seqread", "mirrored_seqwrite", "mirrored_write_4k_qd32_4_luns",
		"mirrored_write_4k_qd32_16_luns", "luns4_", "mirrored_write_4k_qd32_2_sessions", "mirrored_write_4k_qd32_4_sessions", "forwarded"}, without: []string{"cold"}},
	{name: "cold", prefix: []string{"randread_4k_qd1_cold", "randread_4k_qd32_cold", "randread_64k_qd16_cold", "mixed_70_30_4k_qd32_cold", "randread_4k_qd32_5ms", "lab_parallelism"}},
	{name: "checksums", prefix: []string{"checksum_cost"}},
	{name: "alua", prefix: []string{"alua_"}},
	{name: "pauses", prefix: []string{"transfer_pause", "crash_", "node_", "partner_lost_pause", "write_during_snapshot", "snapshot_pause", "snapshot_minute"}, values: true},
	{name: "sessions", prefix: []string{"sessions_"}},
	{name: "overload", prefix: []string{"write_overload"}, values: true},
	{name: "groups", prefix: []string{"group_"}, apart: true},
	{name: "rotation", prefix: []string{"rotation_"}, apart: true},
	{name: "scale", prefix: []string{"failover_pause", "transfer_all", "arbiter_writes", "idle_memory", "create_"}},
}

func (t table) holds(name string) bool {
	has := func(list []string, f func(a, b string) bool) bool {
		return slices.ContainsFunc(list, func(x string) bool { return f(name, x) })
	}
	return has(t.prefix, strings.HasPrefix) && !has(t.without, strings.Contains)
}

func (t table) markdown(r Report) string {
	var b strings.Builder
	b.WriteString("| row | Gemel | unit | p50 / p99 / p99.9 ms | CPU µs/op | peer | its figure | its p50 / p99 / p99.9 ms | its CPU | ratio | A/A |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	rows := slices.DeleteFunc(slices.Clone(r.Rows), func(row Row) bool { return !t.holds(row.Name) })
	if t.values {
		return valueTable(rows)
	}
	for _, row := range rows {
		peer := row
		peer.Gemels, peer.GemelCPU = row.Peers, row.PeerCPU
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", row.Name, Number(row.Gemel), row.Unit, row.latencyText(), cpuText(row.GemelCPU),
			dash(row.PeerName), pointer(row.Peer), peer.latencyText(), cpuText(peer.GemelCPU), emphasis(row), row.controlText())
	}
	return b.String()
}

func valueTable(rows []Row) string {
	var b strings.Builder
	b.WriteString("| row | worst | unit | events | least..most | further figures |\n|---|---|---|---|---|---|\n")
	for _, row := range rows {
		var more []string
		for _, k := range keys(row.Values) {
			more = append(more, fmt.Sprintf("%s %s", k, Number(row.Values[k])))
		}
		if row.Gemels != nil {
			more = append([]string{"p50 / p99 / p99.9 ms " + row.latencyText()}, more...)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %d | %s..%s | %s |\n", row.Name, Number(row.Gemel), row.Unit, row.Rounds, Number(row.GemelSpread.Min), Number(row.GemelSpread.Max), strings.Join(more, ", "))
	}
	return b.String()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// emphasis makes a claimed ratio below 1 stand out.
func emphasis(r Row) string {
	s := r.ratioText()
	if r.Ratio != nil && *r.Ratio < 1 && (r.Resolved == nil || *r.Resolved) {
		return "**" + s + "**"
	}
	return s
}

// latencyLines are p50 and p99 by depth, of the case and of some of its peers.
func latencyLines(r Report, row, peers string) []line {
	kinds := []struct {
		name string
		get  func(Latency) float64
	}{{"p50", func(l Latency) float64 { return l.P50 }}, {"p99", func(l Latency) float64 { return l.P99 }}}
	lines := make([]line, 2*(1+len(strings.Fields(peers))))
	add := func(at int, name string, depth int, l *Latency) {
		for k, kind := range kinds {
			i := 2*at + k
			lines[i].name = name + " " + kind.name
			if l != nil {
				lines[i].xys = append(lines[i].xys, plotter.XY{X: float64(depth), Y: max(kind.get(*l)/1000, 0.001)})
			}
		}
	}
	found := 0
	for _, depth := range depths {
		main, ok := r.Row(fmt.Sprintf(row, depth))
		if !ok {
			continue
		}
		found++
		add(0, "Gemel", depth, main.Gemels)
		for i, name := range strings.Fields(peers) {
			peer := main
			if main.PeerName != name {
				if peer, ok = r.Row(main.Name + "_to_" + name); !ok {
					continue
				}
			}
			add(i+1, name, depth, peer.Peers)
		}
	}
	if found < 2 { // no curve
		return nil
	}
	return lines
}
