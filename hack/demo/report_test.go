package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

func good() *Report {
	p := newReport()
	p.all, p.Identical = true, true
	p.Images = []compare.Image{{Name: "x", Identical: true}}
	p.TransferMS, p.FailoverMS = ms(99*time.Millisecond), ms(1499*time.Millisecond)
	p.Phases = map[string]int64{"steady": 1000, "transfer": 1001}
	return p
}

func TestVerdictNamesEveryFailure(t *testing.T) {
	if v := good().verdict(); len(v) != 0 {
		t.Fatalf("a good run: %v", v)
	}
	for want, spoil := range map[string]func(p *Report){
		"2 acknowledged writes are lost": func(p *Report) {
			p.lose([]load.Finding{{Stream: "v", Block: 1, What: "stale"}, {Stream: "v", Block: 2, What: "empty"}})
			p.lose([]load.Finding{{Stream: "v", Block: 1, What: "stale"}}) // seen on another path again
		},
		"1 operations failed":     func(p *Report) { p.IOErrors = 1 },
		"not identical":           func(p *Report) { p.Identical = false },
		"transfer paused I/O":     func(p *Report) { p.TransferMS = ms(100 * time.Millisecond) },
		"fail-over paused I/O":    func(p *Report) { p.FailoverMS = ms(1500 * time.Millisecond) },
		"fail-over was not measu": func(p *Report) { p.FailoverMS = nil },
		"phase steady has 999":    func(p *Report) { p.Phases["steady"] = 999 },
		"did not come to its end": func(p *Report) { p.all = false },
	} {
		p := good()
		spoil(p)
		v := p.verdict()
		if len(v) != 1 || !strings.Contains(v[0].Error(), want) {
			t.Errorf("want %q, got %v", want, v)
		}
	}
	var seed uint64
	p := good()
	p.Seed, p.TransferMS, p.Phases["kill 1"] = &seed, nil, 10
	if v := p.verdict(); len(v) != 0 {
		t.Errorf("a demo-kill has no transfer: %v", v)
	}
}

func TestReportFile(t *testing.T) {
	p := good()
	p.AckedWrites, p.order = 2001, []string{"steady", "transfer"}
	p.lose([]load.Finding{{Stream: "v", Block: 7, What: "torn"}})
	path := filepath.Join(t.TempDir(), "new", "demo.json")
	if err := jsonfile.Write(path, p); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{"acked_writes": 2001.0, "lost_writes": 1.0, "io_errors": 0.0, "transfer_pause_ms": 99.0,
		"failover_pause_ms": 1499.0, "failback_pause_ms": nil, "copies_identical": true, "resynced_bytes": 0.0} {
		if v, ok := got[k]; !ok || v != want {
			t.Errorf("%s is %v, want %v", k, v, want)
		}
	}
	if ph := got["phases"].(map[string]any); ph["steady"] != 1000.0 || len(ph) != 2 {
		t.Errorf("phases %v", ph)
	}
	var out bytes.Buffer
	p.print(story.To(&out, 0), path)
	for _, want := range []string{"FAILED", "lost: v, block 7: torn", "steady 1000 transfer 1001", "99.0 ms"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestLUNOfVolumeID(t *testing.T) {
	const id = "0b9e5a4c-7f3d-4b59-9d6e-2f1c8a7b6d5e"
	for _, s := range []string{id, "p0/" + id, "demo.p0:" + id} {
		if got, err := lunOf(s); err != nil || got != id {
			t.Errorf("%q: %q %v", s, got, err)
		}
	}
	for _, s := range []string{"", "x", id[1:], strings.ToUpper(id)} {
		if _, err := lunOf(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestSeedIsParsed(t *testing.T) {
	if n, err := parseSeed("17"); n != 17 || err != nil {
		t.Error(n, err)
	}
	if _, err := parseSeed("x"); err == nil {
		t.Error("x is taken")
	}
	if _, err := parseSeed(""); err != nil {
		t.Error(err)
	}
}
