package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/vm"
)

// measured is what e2e/kernel/probe answers.
type measured struct {
	Operations int64    `json:"operations"`
	LongestMS  float64  `json:"longest_ms"`
	Errors     []string `json:"errors"`
	Lost       []string `json:"lost"`
}

// load is a probe that writes in a guest.
type load struct {
	pid    int
	client http.Client
	errors int // that are in the results
}

const probePath = "/usr/local/bin/probe"

// startLoad begins to write to a device or file of the guest.
func startLoad(ctx context.Context, g *vm.Guest, path string, size int64, depth int) (*load, error) {
	program, err := os.ReadFile(probe)
	if err != nil {
		return nil, err
	}
	if err := g.Put(ctx, probePath, 0o755, program); err != nil {
		return nil, err
	}
	socket := fmt.Sprintf("/run/probe-%d", time.Now().UnixNano())
	l := &load{}
	l.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return g.Dial(ctx, "unix", socket)
	}}
	l.pid, err = g.Start(ctx, guest.Command{Argv: []string{probePath, path, strconv.FormatInt(size, 10), strconv.Itoa(depth), socket}, Log: socket + ".log"})
	if err != nil {
		return nil, err
	}
	for {
		if _, err = l.begin(ctx); err == nil {
			return l, nil
		}
		p, perr := g.Look(ctx, l.pid)
		if perr != nil || !p.Running || ctx.Err() != nil {
			text, _ := g.Get(context.WithoutCancel(ctx), socket+".log")
			return nil, fmt.Errorf("probe: %w: %s", err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (l *load) ask(ctx context.Context, what string) (r measured, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://probe/"+what, nil)
	if err != nil {
		return r, err
	}
	a, err := l.client.Do(q)
	if err != nil {
		return r, err
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("probe: %s: %s", what, data)
	}
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(data, &r)
	results.IOErrors += max(len(r.Errors)-l.errors, 0)
	l.errors = max(len(r.Errors), l.errors)
	results.LostWrites += len(r.Lost)
	return r, err
}

// begin opens a window of measurement, measure closes it; count is what was acknowledged since the
// load began.
func (l *load) begin(ctx context.Context) (measured, error)   { return l.ask(ctx, "window") }
func (l *load) count(ctx context.Context) (measured, error)   { return l.ask(ctx, "count") }
func (l *load) measure(ctx context.Context) (measured, error) { return l.ask(ctx, "measure") }

// finish ends the load and reads everything back.
func (l *load) finish(ctx context.Context) (measured, error) {
	r, err := l.ask(ctx, "finish")
	results.Operations += r.Operations
	return r, err
}
