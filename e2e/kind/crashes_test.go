package kind

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("operator, driver and node plugin that are killed during an operation", func() {
	It("finish the operation, and leave nothing behind", func(ctx context.Context) {
		inSync(ctx)
		ns := newNamespace(ctx)
		// Each round kills them at another moment of every step.
		var luns []string
		for _, after := range []time.Duration{0, 700 * time.Millisecond, 1500 * time.Millisecond} {
			name := "data-" + after.String()[:1]
			on := workers(ctx)
			disturb := func() { time.Sleep(after); deleteComponents(ctx, "--grace-period=0", "--force", "--wait=false") } // the moment is what differs between the rounds
			By("create, attach and stage, killed after " + after.String())
			claim(ctx, ns, name, "320Mi", "Filesystem", "")
			pod(ctx, ns, name, name, on[0], "sleep infinity", false)
			disturb()
			running(ctx, ns, name)
			luns = append(luns, lunOf(ctx, ns, name))
			inPod(ctx, ns, name, "echo kept > /data/file && sync")
			By("expand")
			kubectl(ctx, "patch", "pvc", name, "-n", ns, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"480Mi"}}}}`)
			disturb()
			Eventually(func() string { return field(ctx, "pvc", name, ns, "{.status.capacity.storage}") }).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("480Mi"))
			By("detach and attach elsewhere")
			kubectl(ctx, "delete", "pod", "-n", ns, name, "--wait=false")
			disturb()
			Eventually(func() string { return phase(ctx, ns, name) }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeEmpty())
			pod(ctx, ns, name, name, on[1], "sleep infinity", false)
			disturb()
			running(ctx, ns, name)
			Expect(inPod(ctx, ns, name, "cat /data/file")).To(Equal("kept"))
			By("delete")
			kubectl(ctx, "delete", "pod,pvc", "-n", ns, "--all", "--wait=false")
			disturb()
			Eventually(func() string { return kubectl(ctx, "get", "pod,pvc", "-n", ns, "-o", "name") }).WithContext(ctx).WithTimeout(4 * time.Minute).Should(BeEmpty())
		}
		for _, lun := range luns {
			Eventually(func() string { return field(ctx, "logicalunit", lun, "", "{.metadata.name}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeEmpty())
			clean(ctx, lun)
		}
		Eventually(func() string {
			return kubectl(ctx, "get", "pv", "-o", `jsonpath={.items[?(@.spec.claimRef.namespace=="`+ns+`")].metadata.name}`)
		}).WithContext(ctx).Should(BeEmpty())
		Eventually(func() string { return orphans(ctx) }).WithContext(ctx).Should(BeEmpty())
	}, NodeTimeout(20*time.Minute))
})
