package rig

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
)

func TestMain(m *testing.M) {
	HopMain() // this program is a bare hop, too
	os.Exit(m.Run())
}

// Writes travel through both processes, reads through one; both are batched, with and without TLS.
func TestHopsCarryReadsAndWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := New(t.TempDir(), file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tls := range []bool{false, true} {
		s, stop, err := r.StartHops(t.Context(), tls)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []load.Workload{{Block: 4096, Depth: 1}, {Reads: 50, Block: 16 << 10, Depth: 16}} {
			x, err := load.Measure(t.Context(), w, 50*time.Millisecond, s.Procs, s.Device)
			if err != nil || x.Hist.Count() == 0 || x.Rate <= 0 {
				t.Errorf("%+v over hops, TLS %v: %v", w, tls, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := s.WriteAt(ctx, make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		cancel()
		stop() // a load that is cut off fails
		if _, err := load.Measure(t.Context(), load.Workload{Block: 4096, Depth: 1}, 50*time.Millisecond, nil, s.Device); err == nil {
			t.Error("a load on hops that have ended does not fail")
		}
		CloseDevice(s.Device)
	}
}
