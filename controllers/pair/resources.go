package pair

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/memlimit"
)

// Defaults of spec.resources of a target pod. Decision 0034 has the reasons.
var (
	defaultCPU    = resource.MustParse("250m")  // a target that gets no CPU time for half a lease loses the lease
	defaultMemory = resource.MustParse("512Mi") // for an idle target, its page cache and a few busy sessions
	defaultLimit  = resource.MustParse("4Gi")   // measured with 48 sessions, for a hundred
	leastLimit    = resource.MustParse("512Mi") // with less, a dozen sessions may cause an OOM kill; the CRD has the same rule
)

// resources of a target pod: those of the spec, with defaults for what it leaves out. There is
// always a memory limit and a memory request. The error names the field: the CRD does not validate
// objects that are older than its rules.
func resources(c *v1alpha1.StorageCluster) (corev1.ResourceRequirements, error) {
	r := *c.Spec.Resources.DeepCopy()
	limit, limited := r.Limits[corev1.ResourceMemory]
	request, requested := r.Requests[corev1.ResourceMemory]
	switch {
	case limited && limit.Cmp(leastLimit) < 0:
		return r, fmt.Errorf("spec.resources.limits.memory: %s is less than the %s that a target node needs: raise it, or leave it out for %s", &limit, &leastLimit, &defaultLimit)
	case limited && requested && request.Cmp(limit) > 0:
		return r, fmt.Errorf("spec.resources.requests.memory: %s is more than limits.memory, %s: lower it, or raise the limit", &request, &limit)
	case !limited:
		limit = defaultLimit
		if request.Cmp(limit) > 0 {
			limit = request
		}
	}
	if !requested {
		request = defaultMemory
	}
	if r.Limits == nil {
		r.Limits = corev1.ResourceList{}
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	r.Limits[corev1.ResourceMemory], r.Requests[corev1.ResourceMemory] = limit, request
	if _, ok := r.Requests[corev1.ResourceCPU]; !ok {
		r.Requests[corev1.ResourceCPU] = defaultCPU
	}
	return r, nil
}

// withoutDefaults removes what resources would set anyway, so that a rebuilt cluster gets the
// defaults of later releases.
func withoutDefaults(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	r = *r.DeepCopy()
	drop := func(l *corev1.ResourceList, name corev1.ResourceName, value resource.Quantity) {
		if q, ok := (*l)[name]; ok && q.Cmp(value) == 0 {
			delete(*l, name)
		}
		if len(*l) == 0 {
			*l = nil
		}
	}
	drop(&r.Requests, corev1.ResourceCPU, defaultCPU)
	drop(&r.Requests, corev1.ResourceMemory, defaultMemory)
	drop(&r.Limits, corev1.ResourceMemory, defaultLimit)
	return r
}

// goLimit is GOMEMLIMIT of a target. Targets follow the limit of their container automatically,
// except for release 0.1.0, which spec.image may name.
func goLimit(r corev1.ResourceRequirements) string {
	return fmt.Sprint(memlimit.Of(r.Limits.Memory().Value()))
}
