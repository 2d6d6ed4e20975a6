// Command probe runs in a guest, or in a pod: it writes to a device or file with O_DIRECT and a
// queue, remembers what was acknowledged, measures how long operations take around an event, and
// reads everything back in the end. It takes its commands over a socket.
//
//	probe PATH BYTES DEPTH SOCKET [PACE]
//
// PACE is the least time between the beginnings of two writes of one place in the queue: 20ms.
// Without it they follow each other at once.
//
// GET /window begins a measurement, GET /count says how many operations have been acknowledged, GET
// /measure ends the measurement, GET /finish stops, verifies and ends the program.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/ledger"
	"github.com/gemel-storage/gemel/internal/testkit/load"
)

// Report is the answer to measure and finish.
type Report struct {
	Operations int64    `json:"operations"`
	LongestMS  float64  `json:"longest_ms"` // of those that overlap the window
	Errors     []string `json:"errors,omitempty"`
	Lost       []string `json:"lost,omitempty"` // finish only: blocks that lost an acknowledged write
}

type probe struct {
	stream *load.Stream
	meter  *load.Meter
	end    chan struct{}

	mu     sync.Mutex
	window *load.Window
}

func main() {
	if len(os.Args) != 5 && len(os.Args) != 6 {
		log.Fatal("usage: probe PATH BYTES DEPTH SOCKET [PACE]")
	}
	var pace time.Duration
	if len(os.Args) == 6 {
		var err error
		if pace, err = time.ParseDuration(os.Args[5]); err != nil || pace < 0 {
			log.Fatalf("probe: PACE %q is no duration as 20ms", os.Args[5])
		}
	}
	size, err1 := strconv.ParseInt(os.Args[2], 10, 64)
	depth, err2 := strconv.Atoi(os.Args[3])
	if err1 != nil || err2 != nil || depth < 1 || size < int64(depth)*ledger.BlockSize {
		log.Fatal("probe: BYTES or DEPTH is wrong")
	}
	if err := run(os.Args[1], size, depth, os.Args[4], pace); err != nil {
		log.Fatal(err)
	}
}

func run(path string, size int64, depth int, socket string, pace time.Duration) error {
	f, err := load.OpenFile(path, false)
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	p := &probe{meter: load.NewMeter(""), end: make(chan struct{})}
	seed := uint64(time.Now().UnixNano())
	p.stream = load.NewStream(path, f, p.meter, seed, depth, seed, load.Region{Blocks: int(size / ledger.BlockSize)})
	p.stream.Every = pace
	p.stream.Start()
	s := &http.Server{Handler: p.handler(), ReadHeaderTimeout: 10 * time.Second}
	answered := make(chan error, 1)
	go func() {
		<-p.end
		answered <- s.Shutdown(context.Background())
	}()
	if err := s.Serve(l); err != http.ErrServerClosed { // which it is as soon as Shutdown begins
		return err
	}
	return <-answered
}

func (p *probe) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /window", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.window = p.meter.Begin()
		answer(w, p.count())
	})
	m.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) { answer(w, p.count()) })
	m.HandleFunc("GET /measure", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.window == nil {
			http.Error(w, "no window was begun", http.StatusConflict)
			return
		}
		longest, n, err := p.window.End(r.Context())
		p.window = nil
		report := Report{Operations: n, LongestMS: float64(longest.Microseconds()) / 1e3, Errors: p.errors()}
		if err != nil {
			report.Errors = append(report.Errors, "operations under way do not end: "+err.Error())
		}
		answer(w, report)
	})
	m.HandleFunc("GET /finish", func(w http.ResponseWriter, r *http.Request) {
		report := Report{Operations: p.meter.Acked()}
		err := p.stream.Stop(r.Context())
		if err == nil {
			var lost []load.Finding
			lost, err = p.stream.Verify(r.Context(), p.stream.Target, func(int) {})
			for _, f := range lost {
				report.Lost = append(report.Lost, f.String())
			}
		}
		if report.Errors = p.errors(); err != nil {
			report.Errors = append(report.Errors, err.Error())
		}
		answer(w, report)
		close(p.end)
	})
	return m
}

func (p *probe) count() Report { return Report{Operations: p.meter.Acked(), Errors: p.errors()} }

func (p *probe) errors() (out []string) {
	for _, err := range p.meter.Errors() {
		out = append(out, fmt.Sprint(err))
	}
	return out
}

func answer(w http.ResponseWriter, r Report) {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		log.Print(err)
	}
}
