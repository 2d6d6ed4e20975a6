package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

func TestCompare(t *testing.T) {
	list := func(rates ...float64) (s []sample) {
		for _, r := range rates {
			s = append(s, sample{rate: r, cpuPer: 2 * time.Microsecond})
		}
		return s
	}
	r := compare("x", "IOPS", list(50, 10, 30), list(10, 20, 5, 15), &served{name: "peer", flags: "some"})
	if r.Gemel != 30 || *r.Peer != 12.5 || *r.Ratio != 2.4 || *r.GemelSpread != (spread{10, 50}) || *r.PeerSpread != (spread{5, 20}) || r.PeerCPU != 2 {
		t.Fatalf("%+v", r)
	}
	p := worstOf("pause", []float64{3, 9, 1})
	if p.Gemel != 9 || p.Peer != nil || p.Ratio != nil {
		t.Fatalf("%+v", p)
	}
	path := filepath.Join(t.TempDir(), "out", "bench.json")
	if err := jsonfile.Write(path, []result{r, p}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back []map[string]any
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"name", "gemel", "peer", "ratio", "unit"} {
		if _, ok := back[1][key]; !ok {
			t.Errorf("no %q in %v", key, back[1])
		}
	}
	if back[1]["peer"] != nil || back[0]["ratio"] != 2.4 {
		t.Errorf("peer of a pause %v, ratio %v", back[1]["peer"], back[0]["ratio"])
	}
}

// TestWorst: only operations that end after the mark count, with the time from before it included.
func TestWorst(t *testing.T) {
	r := &runner{begun: time.Now().Add(-time.Hour)}
	slow := &loadIO{at: time.Hour - time.Minute}
	r.note(slow)
	if r.worst() != 0 {
		t.Fatal("counted before the mark")
	}
	r.mark()
	r.note(&loadIO{at: time.Hour})
	r.note(slow)
	r.note(&loadIO{at: time.Hour})
	if w := r.worst(); w < time.Minute || w > 2*time.Minute {
		t.Fatalf("worst %v", w)
	}
}

func TestCPUTime(t *testing.T) {
	before, err := cpuTime([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		now, err := cpuTime([]int{os.Getpid()})
		if err != nil {
			t.Fatal(err)
		}
		if now > before {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a busy process uses no time")
		}
	}
}
