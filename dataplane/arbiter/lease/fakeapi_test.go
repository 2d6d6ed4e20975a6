package lease

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// etcd is what the API servers of a test share: one Lease, updated as they do it, conditional on
// uid and resourceVersion.
type etcd struct {
	mu      sync.Mutex
	rv      int
	lease   map[string]any // nil: not there
	history []map[string]any
}

func newEtcd() *etcd {
	return &etcd{rv: 7, lease: map[string]any{
		"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
		"metadata": map[string]any{"name": "p0", "namespace": "gemel", "uid": "u1", "resourceVersion": "7",
			"labels": map[string]any{LabelPair: "p0"}, "unheardOf": map[string]any{"x": json.Number("12345678901234567890")}},
		"spec": map[string]any{"leaseDurationSeconds": json.Number("15")},
	}}
}

func copyOf(m map[string]any) map[string]any {
	b, _ := json.Marshal(m)
	var c map[string]any
	_ = json.Unmarshal(b, &c)
	return c
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "reason": reason, "message": "test: " + reason, "code": code})
}

func (e *etcd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease == nil {
		refuse(w, 404, "NotFound")
		return
	}
	if r.Method == http.MethodPut {
		var next map[string]any
		if err := json.Unmarshal(body, &next); err != nil {
			refuse(w, 400, "BadRequest")
			return
		}
		m, old := next["metadata"].(map[string]any), e.lease["metadata"].(map[string]any)
		if m["uid"] != old["uid"] || m["resourceVersion"] != old["resourceVersion"] {
			refuse(w, 409, "Conflict")
			return
		}
		e.rv++
		m["resourceVersion"] = strconv.Itoa(e.rv)
		e.lease = next
		e.history = append(e.history, copyOf(next))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e.lease)
}

func (e *etcd) annotate(k string, v any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.lease["metadata"].(map[string]any)
	a, _ := m["annotations"].(map[string]any)
	if a == nil {
		a = map[string]any{}
	}
	if v == nil {
		delete(a, k)
	} else {
		a[k] = v
	}
	m["annotations"] = a
	e.rv++
	m["resourceVersion"] = strconv.Itoa(e.rv)
}

func (e *etcd) writes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.history)
}

// server is one API server with a hook before the store; the hook returns false when it has
// answered itself.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	hook func(w http.ResponseWriter, r *http.Request, next http.Handler) bool
	seen int
}

func (s *server) set(h func(w http.ResponseWriter, r *http.Request, next http.Handler) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = h
}

func (s *server) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func newServer(t *testing.T, e http.Handler) *server {
	s := &server{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		h := s.hook
		s.seen++
		s.mu.Unlock()
		if h != nil && !h(w, r, e) {
			return
		}
		e.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	t.Cleanup(s.Close)
	return s
}

// config reaches a server; every httptest server has the same certificate.
func config(s *server) *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func newClient(t *testing.T, cfg *rest.Config, more ...*server) *Client {
	o := Options{Namespace: "gemel", Name: "p0", Cluster: "c", Pair: "p0", Hedge: 60 * time.Millisecond, Timeout: 3 * time.Second,
		Logger: slog.New(slog.DiscardHandler)}
	for _, s := range more {
		o.Endpoints = append(o.Endpoints, s.URL)
	}
	c, err := New(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pool.close)
	return c
}

// hang holds a request until its client has gone.
func hang(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	return false
}

// say answers everything with a status.
func say(code int, reason string) func(http.ResponseWriter, *http.Request, http.Handler) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		refuse(w, code, reason)
		return false
	}
}
