package main

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/gemel-storage/gemel/dataplane/arbiter/lease"
)

// record is where the pairs' records are: an API server that knows Leases and nothing else, updated
// as the real one does it, conditional on uid and resourceVersion. The guests share no filesystem
// for a record in a file. It is asked when a pair is founded, not per write.
type record struct {
	server http.Server
	url    string
	ca     []byte // PEM
	served chan error

	mu       sync.Mutex
	versions int
	leases   map[string]map[string]any
}

func newRecord(addr string) (*record, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, []net.IP{net.ParseIP(host)}, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	l, err := tls.Listen("tcp", addr, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13})
	if err != nil {
		return nil, err
	}
	r := &record{url: "https://" + addr, ca: certificate, leases: map[string]map[string]any{}, served: make(chan error, 1)}
	r.server.Handler, r.server.ReadHeaderTimeout, r.server.ErrorLog = r, 10*time.Second, slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	go func() { r.served <- r.server.Serve(l) }()
	return r, nil
}

func (r *record) close() {
	_ = r.server.Close()
	<-r.served
}

// kubeconfig says how to reach it.
func (r *record) kubeconfig() string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
"clusters": [{"name": "x", "cluster": {"server": %q, "certificate-authority-data": %q}}], "users": [{"name": "x", "user": {}}]}`,
		r.url, base64.StdEncoding.EncodeToString(r.ca))
}

// found makes the empty Lease of a pair.
func (r *record) found(namespace, pair string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions++
	r.leases["/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases/"+pair] = map[string]any{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
		"metadata": map[string]any{"name": pair, "namespace": namespace, "uid": "uid-" + pair, "resourceVersion": strconv.Itoa(r.versions),
			"labels": map[string]any{lease.LabelPair: pair}}, "spec": map[string]any{}}
}

var errConflict = errors.New("uid or resourceVersion has changed")

// update stores the next state of a Lease if it was made from the present one.
func (r *record) update(path string, next map[string]any) (map[string]any, error) {
	old, _ := r.leases[path]["metadata"].(map[string]any)
	m, _ := next["metadata"].(map[string]any)
	if m == nil || m["uid"] != old["uid"] || m["resourceVersion"] != old["resourceVersion"] {
		return nil, errConflict
	}
	r.versions++
	m["resourceVersion"] = strconv.Itoa(r.versions)
	r.leases[path] = next
	return next, nil
}

// ServeHTTP implements http.Handler.
func (r *record) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := strings.TrimSuffix(req.URL.Path, "/")
	object, ok := r.leases[path]
	code, reason := http.StatusOK, ""
	switch {
	case !ok:
		code, reason = http.StatusNotFound, "NotFound"
	case req.Method == http.MethodPut:
		var next map[string]any
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<20)).Decode(&next); err != nil {
			code, reason = http.StatusBadRequest, "BadRequest"
		} else if object, err = r.update(path, next); err != nil {
			code, reason = http.StatusConflict, "Conflict"
		}
	case req.Method != http.MethodGet:
		code, reason = http.StatusMethodNotAllowed, "MethodNotAllowed"
	}
	if reason != "" {
		object = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason + ": " + path, "code": code}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // a client that has gone asks again
}
