package lease

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Times of a connection. Within one second of an attempt there has to be room for another server.
const (
	dialTimeout = 400 * time.Millisecond // TCP and TLS, each
	idleTimeout = 30 * time.Second       // above the interval of a node's look at the arbiter, so that a connection is warm
	maxPenalty  = 2 * time.Second        // of a Retry-After: longer ones would outlast a host's patience
)

// endpoint is one address of the API server with connections of its own.
type endpoint struct {
	url        string // without a slash at the end
	serverName string // who the certificate has to name, if not the host of the URL

	mu        sync.Mutex
	rt        http.RoundTripper
	base      *http.Transport
	notBefore time.Time // 429 with Retry-After
}

// pool is the list of endpoints, the one that served last first.
type pool struct {
	cfg   *rest.Config
	self  string // who certificates at discovered addresses have to name: the host of cfg, or its tls-server-name
	fixed []*endpoint

	mu   sync.Mutex
	list []*endpoint
}

func newPool(cfg *rest.Config, more []string) (*pool, error) {
	u, err := serverURL(cfg)
	if err != nil {
		return nil, err
	}
	p := &pool{cfg: cfg, self: u.Hostname()}
	if cfg.ServerName != "" {
		p.self = cfg.ServerName
	}
	for _, s := range append([]string{strings.TrimSuffix(u.String(), "/")}, more...) {
		if err := CheckEndpoint(s); err != nil {
			return nil, err
		}
		e := &endpoint{url: strings.TrimSuffix(s, "/"), serverName: cfg.ServerName}
		if !slices.ContainsFunc(p.fixed, func(x *endpoint) bool { return x.url == e.url }) {
			p.fixed = append(p.fixed, e)
		}
	}
	p.list = slices.Clone(p.fixed)
	return p, nil
}

func serverURL(cfg *rest.Config) (*url.URL, error) {
	u, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the API server's address %q: %w", cfg.Host, err)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}, nil
}

// CheckEndpoint refuses what is not the URL of an API server.
func CheckEndpoint(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return fmt.Errorf(`%q must be the URL of an API server, "https://HOST:PORT"`, s)
	}
	return nil
}

// discovered takes the addresses ("host:port") of the service's EndpointSlice beside the fixed
// ones.
func (p *pool) discovered(addrs []string) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var want []*endpoint
	for _, a := range addrs {
		want = append(want, &endpoint{url: "https://" + a, serverName: p.self})
	}
	want = append(want, p.fixed...)
	is := func(list []*endpoint, e *endpoint) bool {
		return slices.ContainsFunc(list, func(x *endpoint) bool { return x.url == e.url })
	}
	var next []*endpoint
	for _, e := range p.list { // what is known keeps its place and its connections
		if is(want, e) {
			next = append(next, e)
		} else {
			e.drop()
			changed = true
		}
	}
	for _, e := range want {
		if !is(next, e) {
			next = append(next, e)
			changed = true
		}
	}
	p.list = next
	return changed
}

// order is whom to ask, best first, without those that asked to wait.
func (p *pool) order(now time.Time) []*endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.list), func(e *endpoint) bool { return e.waits(now) })
}

// demote puts an endpoint that did not do behind the others, and has its next request use a fresh
// connection: one that is silently dead holds up one attempt only.
func (p *pool) demote(e *endpoint) {
	e.drop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.list, e); i >= 0 {
		p.list = append(slices.Delete(p.list, i, i+1), e)
	}
}

// close closes idle connections; what is under way ends by its context.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.list {
		e.drop()
	}
}

func (e *endpoint) penalize(until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notBefore = until
}

func (e *endpoint) waits(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Before(e.notBefore)
}

// drop forgets the connections. Requests that wait on them continue.
func (e *endpoint) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.base != nil {
		e.base.CloseIdleConnections()
	}
	e.rt, e.base = nil, nil
}

// transport is what to send with. It is made again after a failure, which also reads CA,
// certificate and token again.
func (e *endpoint) transport(cfg *rest.Config) (http.RoundTripper, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rt != nil {
		return e.rt, nil
	}
	c := rest.CopyConfig(cfg)
	if e.serverName != "" {
		c.ServerName = e.serverName
	}
	tc, err := c.TransportConfig()
	if err != nil {
		return nil, err
	}
	secure, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, err
	}
	if secure == nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	secure.NextProtos = []string{"http/1.1"}
	proxy := http.ProxyFromEnvironment
	if tc.Proxy != nil {
		proxy = tc.Proxy
	}
	// HTTP/1.1 on purpose: a connection carries one request at a time, so none waits behind another
	// on a connection that is dead, and there are no pings to tune. A node asks rarely.
	base := &http.Transport{
		Proxy:                 proxy,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 3}}).DialContext,
		TLSClientConfig:       secure,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: DefaultTimeout,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   2,
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableCompression:    true,
	}
	rt, err := transport.HTTPWrappersForConfig(tc, base)
	if err != nil {
		return nil, err
	}
	e.rt, e.base = rt, base
	return rt, nil
}
