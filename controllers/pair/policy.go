package pair

import (
	"cmp"
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/log"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// defaultFailBackDelay is that of the CRD and of the targets.
const defaultFailBackDelay = 30 * time.Second

// modeOf is a mode of the control API as objects have it.
func modeOf(mode string) string {
	for _, m := range []string{v1alpha1.BalancingAuto, v1alpha1.BalancingObserve, v1alpha1.BalancingOff} {
		if strings.EqualFold(m, mode) {
			return m
		}
	}
	return mode
}

// policyOf is the policy of a cluster. Its version is the generation of the object.
func policyOf(c *v1alpha1.StorageCluster) *targetv1.SetOwnershipPolicyRequest {
	b, delay := c.Spec.Balancing, defaultFailBackDelay
	if b == nil {
		b = &v1alpha1.Balancing{}
	}
	if b.FailBackDelay != nil {
		delay = b.FailBackDelay.Duration
	}
	return &targetv1.SetOwnershipPolicyRequest{Mode: strings.ToLower(cmp.Or(b.Mode, v1alpha1.BalancingAuto)), FailBackDelaySeconds: uint32(delay / time.Second), Version: uint64(c.Generation)}
}

// keepPolicy gives the pair the policy of its cluster unless it has it. A cluster that has never
// had one leaves the flags of the targets in force; once the pair has one, a cluster without one
// means the defaults. It never holds anything up: what fails is tried again by the next reconcile,
// and nodes of a release before decide nothing.
func (r *Reconciler) keepPolicy(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, v *view) {
	want := policyOf(c)
	for i := range v.nodes {
		n := &v.nodes[i]
		o := n.status.GetOwnership()
		if !n.serves() || o == nil || o.Mode == "" {
			continue
		}
		if c.Spec.Balancing == nil && o.PolicyVersion == 0 ||
			o.PolicyVersion == want.Version && o.Mode == want.Mode && o.FailBackDelay.AsDuration() == time.Duration(want.FailBackDelaySeconds)*time.Second {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		t, err := r.Targets.Node(ctx, p, n.name)
		if err == nil {
			_, err = t.SetOwnershipPolicy(ctx, want)
		}
		if err != nil && status.Code(err) != codes.Unimplemented {
			log.FromContext(ctx).Info("cannot set the ownership policy of the pair", "version", want.Version, "err", err.Error())
		}
		return
	}
}
