package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
)

func readAll(r *http.Request) []byte {
	b, _ := io.ReadAll(r.Body)
	return b
}

func replay(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// A server that takes connections and says nothing delays no one for longer than a hedge, and the
// next call not at all.
func TestHedgeAsksAnotherServer(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	dead, good := newServer(t, e), newServer(t, e)
	dead.set(hang)
	c := newClient(t, config(dead), good)
	start := time.Now()
	if _, _, err := c.Get(ctx); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 60*time.Millisecond || took > 2*time.Second {
		t.Errorf("the first call took %v", took)
	}
	n := dead.calls()
	v, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	if dead.calls() != n {
		t.Error("the dead server was asked first again")
	}
	if n := testutil.ToFloat64(c.metrics.hedged.WithLabelValues("get")); n != 1 {
		t.Errorf("%v hedged", n)
	}
	if n := testutil.ToFloat64(c.metrics.attempts.WithLabelValues("get", "beaten")); n != 1 {
		t.Errorf("%v beaten", n)
	}
	// A write goes to the next server as well.
	dead.set(nil)
	good.set(hang)
	if _, err = c.CompareAndSwap(ctx, v, record(2)); err != nil {
		t.Fatal(err)
	}
	if e.writes() != 2 {
		t.Errorf("%d writes", e.writes())
	}
	good.set(nil)
}

// A write lands over the first server, whose answer is late; the hedge's 409 is about that one.
func TestHedgedWriteLandsOnce(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	slow, good := newServer(t, e), newServer(t, e)
	slow.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPut {
			return true
		}
		next.ServeHTTP(httptest.NewRecorder(), r)
		<-r.Context().Done()
		return false
	})
	c := newClient(t, config(slow), good)
	v, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil || e.writes() != 1 {
		t.Fatalf("%q %v after %d writes", v, err, e.writes())
	}
	if v, err = c.CompareAndSwap(ctx, v, record(2)); err != nil {
		t.Fatalf("under the version that was reported: %q %v", v, err)
	}
}

// A connection that went silently dead is not used again: the next attempt has a fresh one, also
// with one server only.
func TestFreshConnection(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	s := newServer(t, e)
	c := newClient(t, config(s))
	if _, _, err := c.Get(ctx); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatal(err)
	}
	stuck := ""
	s.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		s.mu.Lock()
		if stuck == "" {
			stuck = r.RemoteAddr
		}
		dead := stuck == r.RemoteAddr
		s.mu.Unlock()
		if dead {
			return hang(w, r, next)
		}
		return true
	})
	start := time.Now()
	if _, _, err := c.Get(ctx); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%v", took)
	}
}

// An address where no server listens costs nothing: the next one is asked at once.
func TestUnreachableServerIsPassedOverAtOnce(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	s := newServer(t, e)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(s)
	cfg.Host = "https://" + l.Addr().String()
	_ = l.Close()
	c := newClient(t, cfg, s)
	c.opt.Hedge = time.Minute // no caller waits for it where an answer, or the lack of it, is plain
	if _, _, err := c.Get(ctx); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatal(err)
	}
	c = newClient(t, cfg)
	_, _, err = c.Get(ctx)
	if err == nil || errors.Is(err, arbiter.ErrNotFound) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	_, err = c.CompareAndSwap(ctx, "u1/7", record(1))
	if err == nil || errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("%v", err)
	}
}

func TestTimeIsUp(t *testing.T) {
	e := newEtcd()
	s := newServer(t, e)
	s.set(hang)
	c := newClient(t, config(s))
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, _, err := c.Get(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%v", took)
	}
}

// What a server says instead of an answer is reported, with what to do; the outcome stays open.
func TestRefusalsAreReportedWithTheFix(t *testing.T) {
	for _, x := range []struct {
		code   int
		reason string
		is     error
		want   string
	}{
		{401, "Unauthorized", ErrDenied, "token"},
		{403, "Forbidden", ErrDenied, `lacks the verb "update" on leases.coordination.k8s.io "p0" in namespace gemel`},
		{422, "Invalid", ErrDenied, "422"},
		{429, "TooManyRequests", ErrThrottled, "FlowSchema"},
		{500, "InternalError", nil, "500"},
		{503, "ServiceUnavailable", nil, "503"},
		{504, "Timeout", nil, "504"},
		{404, "", nil, "not an API server"},
		{302, "", nil, "302"},
	} {
		t.Run(fmt.Sprint(x.code), func(t *testing.T) {
			e := newEtcd()
			s := newServer(t, e)
			c := newClient(t, config(s))
			s.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
				if r.Method == http.MethodPut {
					refuse(w, x.code, x.reason)
				}
				return r.Method != http.MethodPut
			})
			_, err := c.CompareAndSwap(context.Background(), "", record(1))
			if err == nil || errors.Is(err, arbiter.ErrConflict) || errors.Is(err, arbiter.ErrNotFound) || x.is != nil && !errors.Is(err, x.is) ||
				!strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, x.want)
			}
		})
	}
}

// One server that refuses is not the last word while another one answers.
func TestAnotherServerAnswers(t *testing.T) {
	for _, code := range []int{403, 429, 500, 503} {
		e := newEtcd()
		bad, good := newServer(t, e), newServer(t, e)
		bad.set(say(code, "x"))
		c := newClient(t, config(bad), good)
		if _, err := c.CompareAndSwap(context.Background(), "", record(1)); err != nil {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// Retry-After is honoured: the server is left alone, also if it is the only one.
func TestRetryAfter(t *testing.T) {
	e := newEtcd()
	s := newServer(t, e)
	s.set(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		w.Header().Set("Retry-After", "3600")
		refuse(w, 429, "TooManyRequests")
		return false
	})
	c := newClient(t, config(s))
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if _, _, err := c.Get(ctx); !errors.Is(err, ErrThrottled) {
		t.Error(err)
	}
	n := s.calls()
	if _, _, err := c.Get(ctx); !errors.Is(err, ErrThrottled) || s.calls() != n {
		t.Errorf("%v after %d calls", err, s.calls())
	}
	if len(c.pool.order(time.Now().Add(maxPenalty))) != 1 {
		t.Error("it is left alone for too long")
	}
}

// A rotated token is read again at the first 401, within the same call.
func TestRotatedToken(t *testing.T) {
	e := newEtcd()
	s := newServer(t, e)
	file := filepath.Join(t.TempDir(), "token")
	write := func(tok string) {
		if err := os.WriteFile(file, []byte(tok), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	want := "Bearer old"
	s.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Header.Get("Authorization") != want {
			refuse(w, 401, "Unauthorized")
			return false
		}
		return true
	})
	cfg := config(s)
	cfg.BearerTokenFile = file
	c := newClient(t, cfg)
	if _, _, err := c.Get(context.Background()); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatal(err)
	}
	write("new")
	s.mu.Lock()
	want = "Bearer new"
	s.mu.Unlock()
	if _, _, err := c.Get(context.Background()); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatal(err)
	}
	_, err := os.Stat(file)
	if err = errors.Join(err, os.Remove(file)); err != nil {
		t.Fatal(err)
	}
}

// Answers that are none: endless, cut off, of another kind. No secret of the request shows up in an
// error.
func TestNoAnswers(t *testing.T) {
	for name, h := range map[string]func(w http.ResponseWriter){
		"endless": func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, maxAnswer+10)) },
		"cut off": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"kind":"Lease"`))
		},
		"a page":       func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) },
		"another kind": func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"kind":"LeaseList"}`)) },
		"no version":   func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"kind":"Lease","metadata":{"uid":"u"}}`)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEtcd()
			bad, good := newServer(t, e), newServer(t, e)
			bad.set(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
				h(w)
				return false
			})
			cfg := config(bad)
			cfg.BearerToken = "secret"
			c := newClient(t, cfg)
			_, _, err := c.Get(context.Background())
			if err == nil || errors.Is(err, arbiter.ErrNotFound) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
			c = newClient(t, config(bad), good)
			if _, _, err := c.Get(context.Background()); !errors.Is(err, arbiter.ErrNotFound) {
				t.Errorf("with another server: %v", err)
			}
		})
	}
}
