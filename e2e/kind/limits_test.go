package kind

import (
	"context"
	"fmt"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// number is a field of an object as a number; 0: there is none.
func number(ctx context.Context, kind, name, path string) int {
	GinkgoHelper()
	n, _ := strconv.Atoi(field(ctx, kind, name, "", path))
	return n
}

var _ = Describe("the limit of a worker", func() {
	// hack/kind/values.yaml sets node.maxVolumes.
	const most = 32

	It("counts the LUNs of striped volumes, and refuses one that does not fit", func(ctx context.Context) {
		inSync(ctx)
		ns, worker := newNamespace(ctx), bystander(ctx)
		for name, luns := range map[string]int{"wide": 16, "narrow": 8} {
			stripedClassOf(ctx, "e2e-limit-"+name, luns)
		}
		for claim, class := range map[string]string{"one": "wide", "two": "narrow"} {
			claimOf(ctx, ns, claim, "e2e-limit-"+class, "64Mi", "Block", "")
			pod(ctx, ns, claim, claim, worker, "sleep infinity", true)
		}
		running(ctx, ns, "one")
		running(ctx, ns, "two")

		By("seeing that the limit of volumes has gone down by the further LUNs")
		Eventually(func() int { return number(ctx, "host", worker, "{.status.attached}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeNumerically(">=", 24))
		Eventually(func() int {
			return number(ctx, "csinode", worker, `{.spec.drivers[?(@.name=="csi.gemel.storage")].allocatable.count}`)
		}).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal(most - 15 - 7))

		By("making a third volume of 16 LUNs, for which the scheduler sees a place")
		claimOf(ctx, ns, "three", "e2e-limit-wide", "64Mi", "Block", "")
		pod(ctx, ns, "three", "three", worker, "sleep infinity", true)
		Eventually(func() string {
			return kubectl(ctx, "get", "events", "-n", ns, "--field-selector=involvedObject.name=three,reason=FailedAttachVolume", "-o", "jsonpath={.items[*].message}")
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(ContainSubstring(fmt.Sprintf("the volume has 16 LUNs, and worker %s has 24 of the %d LUNs", worker, most)))
		Eventually(func() string { return field(ctx, "pod", "three", ns, "{.status.phase} {.status.reason}") }).WithContext(ctx).
			WithTimeout(6*time.Minute).Should(Equal("Failed VolumeAttachmentLimitExceeded"), "the pod ends, so that another one can be made elsewhere")
		Expect(legsOf(ctx, lunOf(ctx, ns, "three"), "{.status.hosts[*].iqn}")).To(HaveEach(BeEmpty()))

		By("making room")
		deletePod(ctx, ns, "three")
		deletePod(ctx, ns, "one")
		Eventually(func() int { return number(ctx, "host", worker, "{.status.attached}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeNumerically("<=", 16))
		pod(ctx, ns, "three", "three", worker, "sleep infinity", true)
		running(ctx, ns, "three")
		for _, name := range []string{"two", "three"} {
			deletePod(ctx, ns, name)
		}
	}, NodeTimeout(20*time.Minute))
})
