package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// profileTime is how long a profile of processors takes.
const profileTime = 5 * time.Second

// profileGroup loads the LUNs of a point once more, and writes what both nodes do meanwhile beside
// the client's profile: where their processor time goes, and where they wait for locks.
func (b *bench) profileGroup(ctx context.Context, g *groups, w load.Workload, p point) error {
	w.Depth = groupDepth * len(p.devices)
	r, err := load.Start(w, p.devices...)
	if err != nil {
		return err
	}
	for i, n := range harness.Names {
		for _, kind := range []string{"profile", "mutex"} {
			file := fmt.Sprintf("%s.%s.%s.%s", b.o.profile, p.row, n, kind)
			err = errors.Join(err, fetchProfile(ctx, g.pair.Metrics[i], kind, file))
			fmt.Println("wrote", file)
		}
	}
	return errors.Join(err, r.Stop())
}

func fetchProfile(ctx context.Context, addr, kind, file string) error {
	url := fmt.Sprintf("http://%s/debug/pprof/%s?seconds=%d", addr, kind, int(profileTime.Seconds()))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, r.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r.Body)
	return errors.Join(err, f.Close())
}
