package flakyapi

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// upstream acts as an API server: it notes what it carries out.
type upstream struct {
	*httptest.Server
	mu  sync.Mutex
	saw []string
}

func (u *upstream) did() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.saw)
}

func setup(t *testing.T) (*upstream, *Proxy, *http.Client) {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.saw = append(u.saw, r.Method+" "+r.URL.RequestURI()+" "+string(b)+r.Header.Get("Authorization"))
		n := len(u.saw)
		u.mu.Unlock()
		if r.URL.Query().Has("watch") {
			_, _ = io.WriteString(w, "event\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprintf(w, "answer %d", n)
	}))
	t.Cleanup(u.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: u.Certificate().Raw})
	p, err := New(&rest.Config{Host: u.URL, BearerToken: "theirs", TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	c, err := rest.HTTPClientFor(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return u, p, c
}

const leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"

func do(t *testing.T, c *http.Client, p *Proxy, verb, path string) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, verb, p.Config().Host+path, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func TestPassesThrough(t *testing.T) {
	u, p, c := setup(t)
	if code, body, err := do(t, c, p, "PUT", leases+"?fieldManager=x"); code != 200 || body != "answer 1" || err != nil {
		t.Fatalf("%d %q %v", code, body, err)
	}
	if got := u.did(); len(got) != 1 || got[0] != "PUT "+leases+"?fieldManager=x bodyBearer theirs" {
		t.Errorf("%q", got)
	}
	if all, mut := p.Calls(); all != 1 || mut != 1 || p.Counts()["update leases"] != 1 {
		t.Errorf("%d %d %v", all, mut, p.Counts())
	}
	plain := &http.Client{Transport: c.Transport.(interface{ WrappedRoundTripper() http.RoundTripper }).WrappedRoundTripper()}
	if code, _, err := do(t, plain, p, "GET", leases); code != 401 || err != nil {
		t.Errorf("without the token: %d %v", code, err)
	}
}

func TestProxyBesideAnother(t *testing.T) {
	u, p, c := setup(t)
	other, err := p.Beside()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	p.Add(Rule{Fault: Fault{Answer: 503}})
	if code, _, err := do(t, c, other, "GET", leases); code != 200 || err != nil || len(u.did()) != 1 {
		t.Errorf("%d %v", code, err)
	}
}

func TestFaultsOfTheProxy(t *testing.T) {
	for name, x := range map[string]struct {
		fault Fault
		code  int // 0: no answer
		did   int
	}{
		"lost request":    {Fault{LoseRequest: true}, 0, 0},
		"lost response":   {Fault{LoseResponse: true}, 0, 1},
		"duplicate":       {Fault{Duplicate: true}, 200, 2},
		"duplicate, lost": {Fault{Duplicate: true, LoseResponse: true}, 0, 2},
		"conflict":        {Fault{Answer: 409}, 409, 0},
		"throttled":       {Fault{Answer: 429, RetryAfter: 1}, 429, 0},
		"error":           {Fault{Answer: 500}, 500, 0},
		"unavailable":     {Fault{Answer: 503}, 503, 0},
		"delay":           {Fault{Delay: 20 * time.Millisecond}, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			u, p, c := setup(t)
			p.Add(Rule{Match: Match{Resource: "leases", Mutating: true}, Fault: x.fault, Times: 1})
			if code, _, _ := do(t, c, p, "GET", leases); code != 200 {
				t.Errorf("a read: %d", code)
			}
			code, body, err := do(t, c, p, "PUT", leases)
			if code != x.code || (err != nil) != (x.code == 0) || len(u.did()) != 1+x.did {
				t.Errorf("%d %q %v, carried out %d times", code, body, err, len(u.did())-1)
			}
			if x.fault.Answer != 0 && !strings.Contains(body, `"kind":"Status"`) {
				t.Errorf("%s", body)
			}
			if code, _, err := do(t, c, p, "PUT", leases); code != 200 {
				t.Errorf("once more: %d %v", code, err)
			}
		})
	}
}

// A silent loss answers nothing until the client gives up.
func TestSilentLossIsNotAnswered(t *testing.T) {
	u, p, c := setup(t)
	p.Add(Rule{Fault: Fault{LoseResponse: true, Silent: true}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "PUT", p.Config().Host+leases, nil)
		_, err := c.Do(req)
		ended <- err
	}()
	for deadline := time.Now().Add(10 * time.Second); len(u.did()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never carried out")
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("an answer: %v", err)
	default:
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("no error")
	}
}

func TestWhichCalls(t *testing.T) {
	play := func(seed uint64) string {
		r := &ruleState{Rule: Rule{From: 2, Times: 3, Probability: .5, Seed: seed}}
		out := ""
		for range 20 {
			if r.take() {
				out += "x"
			} else {
				out += "."
			}
		}
		return out
	}
	if a := play(1); a != play(1) || !strings.HasPrefix(a, "..") || strings.Count(a, "x") != 3 {
		t.Error(a)
	}
	if play(1) == play(2) && play(2) == play(3) {
		t.Error("the seed does not matter")
	}
	// The first rule that takes a call has it; the others count it.
	_, p, c := setup(t)
	p.Add(Rule{Fault: Fault{Answer: 500}, Times: 1}, Rule{Fault: Fault{Answer: 503}, From: 1, Times: 1})
	for _, want := range []int{500, 503, 200} {
		if code, _, _ := do(t, c, p, "GET", leases); code != want {
			t.Errorf("%d, want %d", code, want)
		}
	}
}

func TestWatchIsCutByRule(t *testing.T) {
	_, p, c := setup(t)
	open := func() io.ReadCloser {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", p.Config().Host+"/api/v1/pods?watch=1", nil)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "event\n" {
			t.Fatalf("%q %v", b, err)
		}
		return res.Body
	}
	w := open()
	p.CutAll()
	if _, err := io.ReadAll(w); err == nil {
		t.Error("it ended as if it were whole")
	}
	p.Add(Rule{Match: Match{Verbs: []string{"watch"}, Resource: "pods"}, Fault: Fault{CutAfter: 10 * time.Millisecond}})
	if _, err := io.ReadAll(open()); err == nil {
		t.Error("not cut")
	}
	if p.Counts()["watch pods"] != 2 {
		t.Error(p.Counts())
	}
}

// A watch that lags brings each event late, and ends with its client; other calls are as quick as
// ever.
func TestWatchThatLags(t *testing.T) {
	_, p, c := setup(t)
	const lag = 200 * time.Millisecond
	p.Add(Rule{Match: Match{Verbs: []string{"watch"}}, Fault: Fault{Lag: lag}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", p.Config().Host+"/api/v1/pods?watch=1", nil)
	began := time.Now()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b := make([]byte, 6)
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "event\n" || time.Since(began) < lag {
		t.Errorf("%q after %v, %v", b, time.Since(began), err)
	}
	cancel()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("it ended as if it were whole")
	}
	if code, _, err := do(t, c, p, "GET", leases); code != 200 {
		t.Errorf("%d %v", code, err)
	}
}

func TestCrashBeforeAndAfterARequest(t *testing.T) {
	for _, landed := range []bool{false, true} {
		u, p, c := setup(t)
		hooked := 0
		p.CrashAt(2, landed, func() {
			hooked++
			if p.Crashed() {
				t.Error("the calls under way are not broken off yet")
			}
		})
		_, _, e0 := do(t, c, p, "GET", leases)
		_, _, e1 := do(t, c, p, "PUT", leases)
		if e0 != nil || e1 != nil || p.Crashed() {
			t.Fatal(e0, e1)
		}
		_, _, e2 := do(t, c, p, "PUT", leases)
		_, _, e3 := do(t, c, p, "GET", leases)
		_, _, e4 := do(t, c, p, "PUT", leases)
		want := 2
		if landed {
			want = 3
		}
		if e2 == nil || e3 == nil || e4 == nil || !p.Crashed() || len(u.did()) != want || hooked != 1 {
			t.Errorf("landed %v: %v, %v, %v; carried out %q, hook %d times", landed, e2, e3, e4, u.did(), hooked)
		}
		p.Reset()
		if code, _, err := do(t, c, p, "GET", leases); code != 200 {
			t.Errorf("after the reset: %d %v", code, err)
		}
	}
}

// A request that is under way when it happens is broken off, too.
func TestCrashCutsWatches(t *testing.T) {
	_, p, c := setup(t)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", p.Config().Host+"/api/v1/pods?watch=1", nil)
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	p.CrashAt(1, true, nil)
	_, _, _ = do(t, c, p, "POST", "/api/v1/namespaces/ns/pods")
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the watch lives on")
	}
}

func TestParseOfRequests(t *testing.T) {
	for in, want := range map[string]string{
		"GET /api/v1/nodes":                                       "list  nodes   ",
		"GET /api/v1/nodes/n":                                     "get  nodes   n",
		"GET /api/v1/namespaces":                                  "list  namespaces   ",
		"DELETE /api/v1/namespaces/x":                             "delete  namespaces  x x",
		"PUT /api/v1/namespaces/x/finalize":                       "update  namespaces finalize x x",
		"POST /api/v1/namespaces/x/pods":                          "create  pods  x ",
		"POST /api/v1/namespaces/x/pods/p/eviction":               "create  pods eviction x p",
		"DELETE /api/v1/namespaces/x/pods":                        "deletecollection  pods  x ",
		"GET /apis/g/v1/namespaces/x/things?watch=true":           "watch g things  x ",
		"PATCH /apis/gemel.storage/v1alpha1/hosts/h/status":       "patch gemel.storage hosts status  h",
		"GET /healthz":                                            "GET     ",
		"GET /apis/g":                                             "GET     ",
		"PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/l": "update coordination.k8s.io leases  ns l",
	} {
		verb, path, _ := strings.Cut(in, " ")
		c := parse(httptest.NewRequest(verb, path, nil))
		if got := strings.Join([]string{c.Verb, c.Group, c.Resource, c.Subresource, c.Namespace, c.Name}, " "); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	for _, x := range []struct {
		m    Match
		want bool
	}{
		{Match{}, true}, {Match{Verbs: []string{"get", "update"}}, true}, {Match{Verbs: []string{"get"}}, false}, {Match{Mutating: true}, true},
		{Match{Subresource: "-"}, false}, {Match{Subresource: "status"}, true}, {Match{Name: "y"}, false}, {Match{Namespace: "n", Name: "x"}, true},
	} {
		if got := x.m.matches(Call{Verb: "update", Resource: "r", Subresource: "status", Namespace: "n", Name: "x"}); got != x.want {
			t.Errorf("%+v: %v", x.m, got)
		}
	}
}
