package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// progress hears from the suite's processes and shows a line for each test that has ended. Kubernetes' tests post
// there (-progress-report-url); what they print themselves is for a log.
type progress struct {
	url    string
	server *http.Server

	mu     sync.Mutex
	out    io.Writer
	start  time.Time
	passed int
	failed int
}

// listen starts to hear, on an address of this machine only.
func listen(out io.Writer) (*progress, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("progress: %w", err)
	}
	p := &progress{url: "http://" + l.Addr().String(), out: out, start: time.Now()}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

// Close stops hearing.
func (p *progress) Close() { _ = p.server.Close() }

// ServeHTTP takes one message: {"msg": "PASSED name of the test", …}.
func (p *progress) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var m struct {
		Msg string `json:"msg"`
	}
	if err := json.NewDecoder(io.LimitReader(q.Body, 1<<20)).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	word, name, _ := strings.Cut(m.Msg, " ")
	switch word {
	case "PASSED":
		p.passed++
	case "FAILED":
		p.failed++
	default:
		return
	}
	fmt.Fprintf(p.out, "%6.0f s  %3d passed %2d failed  %s  %s\n", time.Since(p.start).Seconds(), p.passed, p.failed, word, short(name))
}

// short leaves out what all names begin with.
func short(name string) string {
	if _, rest, ok := strings.Cut(name, "[Testpattern: "); ok {
		return "[" + rest
	}
	return name
}
