package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/arbiter/lease"
)

// Kinds of arbiter, as --arbiter begins.
const (
	arbiterFile  = "file:"
	arbiterLease = "lease:"
)

// validateArbiter checks what can be checked without opening anything.
func (c *Config) validateArbiter() (errs []error) {
	path, isFile := strings.CutPrefix(c.Arbiter, arbiterFile)
	ref, isLease := strings.CutPrefix(c.Arbiter, arbiterLease)
	switch {
	case isLease:
		if _, _, err := lease.ParseRef(ref); err != nil {
			errs = append(errs, bad("arbiter", `%q after "lease:": %v`, ref, err))
		}
	case !isFile || path == "":
		errs = append(errs, bad("arbiter", `%q must be "lease:NAMESPACE/NAME", a Lease of the Kubernetes cluster, or "file:PATH", a file that both nodes reach`, c.Arbiter))
	}
	if !isLease && c.Kubeconfig != "" {
		errs = append(errs, bad("kubeconfig", `is valid with --arbiter lease:NAMESPACE/NAME only: remove it, or change arbiter`))
	}
	if !isLease && len(c.ArbiterEndpoints) > 0 {
		errs = append(errs, bad("arbiter-endpoint", `is valid with --arbiter lease:NAMESPACE/NAME only: remove it, or change arbiter`))
	}
	for _, e := range c.ArbiterEndpoints {
		if err := lease.CheckEndpoint(e); err != nil {
			errs = append(errs, bad("arbiter-endpoint", "%v", err))
		}
	}
	return errs
}

// openArbiter is what the valid configuration names. One with a Run method wants to be run for as
// long as the node is.
func openArbiter(c *Config) (arbiter.Arbiter, error) {
	ref, ok := strings.CutPrefix(c.Arbiter, arbiterLease)
	if !ok {
		return arbiter.NewFile(strings.TrimPrefix(c.Arbiter, arbiterFile))
	}
	namespace, name, err := lease.ParseRef(ref)
	if err != nil {
		return nil, err
	}
	cfg, inside, err := lease.Load(c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return lease.New(cfg, lease.Options{Namespace: namespace, Name: name, Cluster: c.Cluster, Pair: c.Pair, Endpoints: c.ArbiterEndpoints,
		Discover: inside && len(c.ArbiterEndpoints) == 0, Logger: c.Logger})
}

// runner is an arbiter with work of its own.
type runner interface{ Run(ctx context.Context) }
