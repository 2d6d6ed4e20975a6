package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Discovery of the API servers' own addresses, so that a service address whose backend died is not
// the only way.
const (
	slicePath     = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
	discoverEvery = time.Minute
	maxEndpoints  = 16
)

// Run follows the API servers' addresses until ctx ends, if the options say so, then closes idle
// connections. Without Run everything works over the fixed endpoints.
func (c *Client) Run(ctx context.Context) {
	defer c.pool.close()
	if !c.opt.Discover {
		<-ctx.Done()
		return
	}
	t := time.NewTicker(discoverEvery)
	defer t.Stop()
	failed := false
	for {
		err := c.discover(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failed:
			c.log.Warn("cannot read the addresses of the API servers; using the service address only", "err", err)
		case err == nil && failed:
			c.log.Info("read the addresses of the API servers again")
		}
		failed = err != nil
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// discover reads the EndpointSlice that the API servers keep for themselves.
func (c *Client) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	a, err := c.do(ctx, http.MethodGet, slicePath, nil, func(a *answer) bool {
		return a.status == http.StatusOK && a.err == nil || a.status == http.StatusForbidden || a.missing()
	})
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("endpointslices.discovery.k8s.io \"kubernetes\" in namespace default: %d: %s", a.status, a.text())
	}
	addrs, err := addresses(a.body)
	if err != nil {
		return fmt.Errorf("EndpointSlice default/kubernetes: %w", err)
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] }) // pairs spread over the servers
	if c.pool.discovered(addrs) {
		c.log.Info("using API servers", "addresses", addrs)
	}
	return nil
}

// addresses are the host:port of an EndpointSlice, at most maxEndpoints; none is an error, because
// who answers has one.
func addresses(b []byte) ([]string, error) {
	var s struct {
		Kind      string `json:"kind"`
		Endpoints []struct {
			Addresses  []string `json:"addresses"`
			Conditions struct {
				Ready *bool `json:"ready"`
			} `json:"conditions"`
		} `json:"endpoints"`
		Ports []struct {
			Name string `json:"name"`
			Port uint16 `json:"port"`
		} `json:"ports"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	if s.Kind != "EndpointSlice" {
		return nil, fmt.Errorf("kind %q", s.Kind)
	}
	var out []string
	for _, p := range s.Ports {
		if p.Name != "https" || p.Port == 0 {
			continue
		}
		for _, e := range s.Endpoints {
			if r := e.Conditions.Ready; r != nil && !*r {
				continue
			}
			for _, a := range e.Addresses {
				if net.ParseIP(a) != nil && len(out) < maxEndpoints {
					out = append(out, net.JoinHostPort(a, strconv.Itoa(int(p.Port))))
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it has no ready address with a port \"https\"")
	}
	return out, nil
}
