package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// result is one line of out/bench.json. Ratio is above 1 when Gemel is better; null without a peer.
type result struct {
	Name        string   `json:"name"`
	Gemel       float64  `json:"gemel"`
	Peer        *float64 `json:"peer"`
	Ratio       *float64 `json:"ratio"`
	Unit        string   `json:"unit"`
	GemelSpread *spread  `json:"gemel_spread,omitempty"`
	PeerSpread  *spread  `json:"peer_spread,omitempty"`
	GemelCPU    float64  `json:"gemel_cpu_us_per_op,omitempty"`
	PeerCPU     float64  `json:"peer_cpu_us_per_op,omitempty"`
	PeerName    string   `json:"peer_name,omitempty"`
	PeerFlags   string   `json:"peer_flags,omitempty"`
	Rounds      int      `json:"rounds"`
}

type spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func rates(list []sample) (v []float64) {
	for _, s := range list {
		v = append(v, s.rate)
	}
	return v
}

func cpus(list []sample) (v []float64) {
	for _, s := range list {
		v = append(v, float64(s.cpuPer)/float64(time.Microsecond))
	}
	return v
}

// compare makes a result of alternating rounds.
func compare(name, unit string, gemel, peer []sample, p *served) result {
	g := rates(gemel)
	r := result{Name: name, Unit: unit, Gemel: median(g), GemelSpread: &spread{slices.Min(g), slices.Max(g)},
		GemelCPU: median(cpus(gemel)), Rounds: len(g)}
	if len(peer) > 0 {
		v := rates(peer)
		m := median(v)
		ratio := r.Gemel / m
		r.Peer, r.Ratio, r.PeerSpread = &m, &ratio, &spread{slices.Min(v), slices.Max(v)}
		r.PeerCPU, r.PeerName, r.PeerFlags = median(cpus(peer)), p.name, p.flags
	}
	return r
}

// worstOf is the result of events: the worst of them, with all within the spread.
func worstOf(name string, v []float64) result {
	return result{Name: name, Unit: "ms", Gemel: slices.Max(v), GemelSpread: &spread{slices.Min(v), slices.Max(v)}, Rounds: len(v)}
}

func printTable(w io.Writer, list []result) {
	fmt.Fprintf(w, "\n%-28s %12s %12s %7s  %-6s %23s %10s %10s\n", "", "gemel", "peer", "ratio", "unit", "gemel min..max", "cpu us/op", "peer cpu")
	for _, r := range list {
		peer, ratio, min := "-", "-", ""
		if r.Peer != nil {
			peer, ratio = fmt.Sprintf("%.1f", *r.Peer), fmt.Sprintf("%.2f", *r.Ratio)
		}
		if r.GemelSpread != nil {
			min = fmt.Sprintf("%.1f..%.1f", r.GemelSpread.Min, r.GemelSpread.Max)
		}
		fmt.Fprintf(w, "%-28s %12.1f %12s %7s  %-6s %23s %10.1f %10.1f\n", r.Name, r.Gemel, peer, ratio, r.Unit, min, r.GemelCPU, r.PeerCPU)
	}
}
