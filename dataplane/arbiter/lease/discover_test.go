package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
)

func slice(addr string) string {
	host, port, _ := strings.Cut(addr, ":")
	return fmt.Sprintf(`{"kind":"EndpointSlice","endpoints":[{"addresses":["%s"],"conditions":{"ready":true}},
		{"addresses":["192.0.2.9"],"conditions":{"ready":false}}],"ports":[{"name":"https","port":%s},{"name":"x","port":1}]}`, host, port)
}

func TestDiscoverFindsAllServers(t *testing.T) {
	e := newEtcd()
	service, direct := newServer(t, e), newServer(t, e)
	service.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.URL.Path == slicePath {
			_, _ = w.Write([]byte(slice(direct.Listener.Addr().String())))
		}
		return r.URL.Path != slicePath
	})
	c := newClient(t, config(service))
	c.opt.Discover = true
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	for deadline := time.Now().Add(5 * time.Second); len(c.pool.order(time.Now())) != 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d endpoints", len(c.pool.order(time.Now())))
		}
	}
	service.set(hang) // the address behind the service has died
	if _, _, err := c.Get(ctx); !errors.Is(err, arbiter.ErrNotFound) || direct.calls() == 0 {
		t.Errorf("%v", err)
	}
	cancel()
	<-ended
	if !c.pool.discovered(nil) || len(c.pool.order(time.Now())) != 1 {
		t.Error("an address that is no longer named stays")
	}
}

// What is not allowed to be read, or makes no sense, changes nothing.
func TestDiscoverFails(t *testing.T) {
	for _, h := range []func(w http.ResponseWriter, r *http.Request, next http.Handler) bool{
		say(403, "Forbidden"), say(404, "NotFound"), say(500, "x"),
		func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
			_, _ = w.Write([]byte(`{"kind":"EndpointSlice"}`))
			return false
		},
	} {
		e := newEtcd()
		s := newServer(t, e)
		s.set(h)
		c := newClient(t, config(s))
		if err := c.discover(context.Background()); err == nil || len(c.pool.order(time.Now())) != 1 {
			t.Errorf("%v", err)
		}
	}
	many := `{"kind":"EndpointSlice","endpoints":[` + strings.Repeat(`{"addresses":["10.0.0.1","not an address"]},`, 50) + `{"addresses":[]}],"ports":[{"name":"https","port":6443}]}`
	if a, err := addresses([]byte(many)); err != nil || len(a) != maxEndpoints || slices.Contains(a, "not an address:6443") {
		t.Errorf("%v %v", a, err)
	}
}
