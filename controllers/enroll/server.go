// Package enroll is the operator's endpoint for workers to get their CHAP credentials. A worker
// authenticates with the token of its node plugin's pod, which the API server reviews, and gets
// only its own credentials on the requested pair.
//
// A worker also reports here that it has replayed the log of a filesystem, and gets its new paths
// to the volume.
//
// Every replica of the operator serves, not only the leader: a worker that restarts after a failure
// need not wait for an election. The only write, the report of a replay, uses an optimistic lock.
package enroll

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/netutil"
	"k8s.io/client-go/tools/events"

	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// Limits of the endpoint, which is reachable for every pod of the cluster.
const (
	maxConnections = 256
	maxAtOnce      = 32               // concurrent token reviews
	maxHeader      = 32 << 10         // bytes; a token has 1 or 2 KiB
	maxToken       = 16 << 10         // bytes
	readTime       = 5 * time.Second  // of a request, its TLS handshake included
	answerTime     = 10 * time.Second // of an answer
)

// Server of the endpoint. Fields are set before Start.
type Server struct {
	Listen      string
	Keeper      *chap.Keeper
	Reviewer    Reviewer
	Certificate func(ctx context.Context) (*tls.Certificate, error) // called at each handshake
	Events      events.EventRecorder                                // nil: none
	Log         logr.Logger

	limits limits
	busy   chan struct{}
}

// NeedLeaderElection is false: a manager starts it in every replica.
func (*Server) NeedLeaderElection() bool { return false }

// Start serves until the context ends.
func (s *Server) Start(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("enrolment: %w", err)
	}
	return s.Serve(ctx, l)
}

// Serve is Start with a listener, which it closes.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.busy = make(chan struct{}, maxAtOnce)
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+enroll.Path, s.handle)
	mux.HandleFunc("POST "+enroll.PathReach, s.handleReach)
	h := &http.Server{Handler: mux, ReadTimeout: readTime, WriteTimeout: readTime + answerTime, IdleTimeout: readTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    stdlog.New(io.Discard, "", 0), // any client can cause failed handshakes
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			ctx, cancel := context.WithTimeout(ctx, readTime)
			defer cancel()
			return s.Certificate(ctx)
		}}}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTime)
		defer cancel()
		if h.Shutdown(end) != nil {
			_ = h.Close()
		}
	})
	s.Log.Info("serving enrolment", "address", l.Addr().String())
	err := h.ServeTLS(netutil.LimitListener(l, maxConnections), "", "")
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("enrolment: %w", err)
}

// handle answers one request.
func (s *Server) handle(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), answerTime)
	defer cancel()
	a, node, pair, err := s.serve(ctx, req)
	status, outcome := http.StatusOK, "given"
	var r *refusal
	switch {
	case errors.As(err, &r):
		status, outcome, a = r.status, r.outcome, enroll.Answer{Error: r.text}
		s.recordEvent(ctx, node, r)
		if outcome == "throttled" {
			break // counted by the metric only, because a log line for each would amplify the load
		}
		s.Log.Info("refused credentials", "node", node, "pair", pair, "from", req.RemoteAddr, "why", r.text)
	case err != nil:
		status, outcome, a = http.StatusServiceUnavailable, "error", enroll.Answer{Error: unknown}
		s.Log.Error(err, "cannot return credentials", "node", node, "pair", pair)
	case a.User == "":
		outcome = "unneeded"
	default:
		s.Log.Info("gave credentials", "node", node, "pair", pair, "user", a.User)
	}
	respond(w, status, outcome, a)
}

// unknown is the answer after an internal error.
const unknown = "the operator could not answer: see the log of the operator"

// respond sends an answer, and counts it.
func respond(w http.ResponseWriter, status int, outcome string, a any) {
	requests.WithLabelValues(outcome).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a)
}

// serve handles a request for credentials.
func (s *Server) serve(ctx context.Context, req *http.Request) (a enroll.Answer, node, pair string, err error) {
	var body enroll.Request
	node, done, err := s.authenticate(ctx, req, &body, `{"pair": NAME}`, func() bool { return body.Pair != "" && len(body.Pair) <= 253 })
	if err != nil {
		return a, "", "", err
	}
	defer done()
	a, err = s.answer(ctx, node, body.Pair)
	return a, node, body.Pair, err
}

// authenticate returns the worker of a request, and reads the body, which valid checks. Cheap
// checks come first. done must be called after the response.
func (s *Server) authenticate(ctx context.Context, req *http.Request, body any, form string, valid func() bool) (node string, done func(), err error) {
	address, _, _ := net.SplitHostPort(req.RemoteAddr)
	if !s.limits.allow(address) {
		return "", nil, refuse(http.StatusTooManyRequests, "throttled", "too many requests from %s: wait a moment", address)
	}
	token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" || len(token) > maxToken {
		return "", nil, refuse(http.StatusUnauthorized, "unauthenticated", "the Authorization header has no bearer token")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(nil, req.Body, enroll.MaxMessage))
	if err != nil || json.Unmarshal(raw, body) != nil || !valid() {
		return "", nil, refuse(http.StatusBadRequest, "refused", "the request must be %s", form)
	}
	select {
	case s.busy <- struct{}{}:
		done = func() { <-s.busy }
	default:
		return "", nil, refuse(http.StatusServiceUnavailable, "throttled", "%d other requests are being answered: wait a moment", maxAtOnce)
	}
	node, err = s.Reviewer.Node(ctx, token)
	if errors.Is(err, errToken) {
		err = refuse(http.StatusForbidden, "unauthenticated", "%v", err)
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return node, done, nil
}
