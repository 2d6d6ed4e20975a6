// Package flakyapi is an HTTPS proxy in front of a kube-apiserver that loses, delays, repeats and
// refuses calls, for the tests of whatever talks to one:
//
//	p, err := flakyapi.New(cfg)
//	defer p.Close()
//	p.Add(flakyapi.Rule{Match: flakyapi.Match{Mutating: true, Resource: "leases"}, Fault: flakyapi.Fault{LoseResponse: true}, Times: 1})
//	client := kubernetes.NewForConfigOrDie(p.Config())
//
// Every client with Config acts as the user of cfg. It listens on loopback and wants a token that
// only Config has.
package flakyapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// maxBody bounds a request, as the API server does.
const maxBody = 3 << 20

// Proxy is safe for concurrent use.
type Proxy struct {
	server   *httptest.Server
	upstream *url.URL
	rt       http.RoundTripper
	token    string
	of, cfg  *rest.Config // of the API server, and of this proxy

	mu      sync.Mutex
	rules   []*ruleState
	counts  map[string]int
	calls   int
	changes int
	crash   *crash
	cut     context.CancelFunc // of every call under way
	under   context.Context
}

// crash is the end of a process, as the API server sees it.
type crash struct {
	left   int // mutating calls until it happens
	landed bool
	hook   func()
	down   bool // every call fails
	over   bool // and those under way are broken off
}

// New starts a proxy for the server of cfg, with the credentials of cfg.
func New(cfg *rest.Config) (*Proxy, error) { return start(cfg, rand.Text()) }

// Beside starts one more proxy of the same server, with rules of its own, which takes the same
// token and shows the same certificate: as the address of another API server of the cluster, to a
// client that knows several.
func (p *Proxy) Beside() (*Proxy, error) { return start(p.of, p.token) }

func start(cfg *rest.Config, token string) (*Proxy, error) {
	u, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	rt, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	p := &Proxy{upstream: u, rt: rt, of: cfg, token: token, counts: map[string]int{}}
	p.under, p.cut = context.WithCancel(context.Background())
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // connections are broken on purpose
	p.server.EnableHTTP2 = true
	p.server.StartTLS()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	p.cfg = &rest.Config{Host: p.server.URL, BearerToken: p.token, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS: cfg.QPS, Burst: cfg.Burst, ContentConfig: cfg.ContentConfig}
	return p, nil
}

// Config is how to reach the API server through the proxy.
func (p *Proxy) Config() *rest.Config { return rest.CopyConfig(p.cfg) }

// Close breaks every call off and ends the proxy.
func (p *Proxy) Close() {
	p.CutAll()
	p.server.CloseClientConnections()
	p.server.Close()
}

// Add puts a rule behind the others. To each call the first rule that matches and takes it happens;
// every rule that matches counts it.
func (p *Proxy) Add(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range rules {
		p.rules = append(p.rules, &ruleState{Rule: r})
	}
}

// Reset takes all rules away and, after a crash, lets calls through again. Counts stay.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.crash = nil, nil
}

// CrashAt has the client's process die, as far as the API server can see, at its n-th mutating call
// from now, counted from 1: before it is carried out, or if landed is true after it, with the
// answer lost. hook, if any, is called at that moment, before any client learns of it. From then on
// every call fails and those under way are broken off, until Reset.
func (p *Proxy) CrashAt(n int, landed bool, hook func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crash = &crash{left: n, landed: landed, hook: hook}
}

// Crashed reports whether CrashAt has come to pass, and is over: a call that begins after Reset
// is not broken off by it.
func (p *Proxy) Crashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crash != nil && p.crash.over
}

// CutAll breaks off every call under way, watches above all.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *Proxy) cutLocked() {
	p.cut()
	p.under, p.cut = context.WithCancel(context.Background())
}

// Calls counts the requests that came, and of them those that may change something.
func (p *Proxy) Calls() (all, mutating int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, p.changes
}

// Counts are the requests that came by "verb resource", "update leases" or "update
// targetpairs/status".
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// decide counts a call and says what happens to it.
func (p *Proxy) decide(c Call) (f Fault, now *crash, under context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	what := c.Resource
	if c.Subresource != "" {
		what += "/" + c.Subresource
	}
	p.counts[c.Verb+" "+what]++
	if c.Mutating() {
		p.changes++
	}
	hit := false
	for _, r := range p.rules {
		if r.matches(c) && (!hit && r.take() || hit && r.pass()) {
			f, hit = r.Fault, true
		}
	}
	if cr := p.crash; cr != nil && cr.down {
		return Fault{LoseRequest: true}, nil, p.under
	} else if cr != nil && c.Mutating() {
		if cr.left--; cr.left <= 0 {
			cr.down = true
			under = p.under // this call ends by its own fault
			if cr.landed {
				return Fault{LoseResponse: true}, cr, under
			}
			return Fault{LoseRequest: true}, cr, under
		}
	}
	return f, nil, p.under
}

// pass counts a call that another rule has taken.
func (r *ruleState) pass() bool { r.seen++; return false }

// ServeHTTP is the proxy.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+p.token {
		say(w, http.StatusUnauthorized, 0, "not the token of this proxy")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		say(w, http.StatusRequestEntityTooLarge, 0, err.Error())
		return
	}
	c := parse(r)
	f, now, under := p.decide(c)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(under, cancel)()
	if f.Delay > 0 && !sleep(ctx, f.Delay) {
		panic(http.ErrAbortHandler)
	}
	switch {
	case f.LoseRequest:
		p.end(now)
		lost(ctx, f.Silent)
	case f.Answer != 0:
		say(w, f.Answer, f.RetryAfter, "flakyapi says so")
		return
	}
	if f.Duplicate && c.Mutating() {
		if res, err := p.forward(ctx, r, body); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	if f.LoseResponse { // whatever becomes of the client meanwhile, the API server gets to its end
		ctx = context.WithoutCancel(ctx)
	}
	res, err := p.forward(ctx, r, body)
	if err != nil {
		p.end(now)
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = res.Body.Close() }()
	if f.LoseResponse {
		_, _ = io.Copy(io.Discard, res.Body)
		p.end(now)
		lost(r.Context(), f.Silent)
	}
	if f.CutAfter > 0 {
		t := time.AfterFunc(f.CutAfter, cancel)
		defer t.Stop()
	}
	relay(ctx, w, res, f.Lag)
}

// end carries a crash out.
func (p *Proxy) end(c *crash) {
	if c == nil {
		return
	}
	if c.hook != nil {
		c.hook()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
	c.over = true
}

// lost ends a call without an answer.
func lost(ctx context.Context, silent bool) {
	if silent {
		<-ctx.Done()
	}
	panic(http.ErrAbortHandler)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// forward sends the request on with the proxy's own credentials.
func (p *Proxy) forward(ctx context.Context, r *http.Request, body []byte) (*http.Response, error) {
	u := *r.URL
	u.Scheme, u.Host = p.upstream.Scheme, p.upstream.Host
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range r.Header {
		switch k {
		case "Authorization", "Connection", "Upgrade", "Te", "Transfer-Encoding", "Content-Length":
		default:
			req.Header[k] = v
		}
	}
	return p.rt.RoundTrip(req)
}

// say answers with a Status.
func say(w http.ResponseWriter, code, retryAfter int, text string) {
	reason := map[int]string{401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 429: "TooManyRequests",
		500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}[code]
	w.Header().Set("Content-Type", "application/json")
	details := map[string]any{}
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		details["retryAfterSeconds"] = retryAfter
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"reason": reason, "code": code, "details": details, "message": fmt.Sprintf("%d: %s", code, text)})
}
