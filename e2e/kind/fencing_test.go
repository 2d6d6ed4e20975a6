package kind

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// cut is a command that cuts a worker off from the control plane, under all of its addresses (-I),
// or lets it back (-D).
func cut(how string) string {
	return `for a in $(getent ahosts ` + controlPlane + ` | cut -d' ' -f1 | sort -u); do
	t=iptables; case $a in *:*) t=ip6tables;; esac
	for r in "OUTPUT -d" "INPUT -s" "FORWARD -s" "FORWARD -d"; do $t ` + how + ` $r $a -j DROP; done
done`
}

var _ = Describe("a worker that is cut off from the cluster, but not from the storage", func() {
	It("writes no more after its volume was attached to another worker, not even after it reconnects", func(ctx context.Context) {
		inSync(ctx)
		ns := newNamespace(ctx)
		claim(ctx, ns, "raw", "64Mi", "Block", "")
		away := bystander(ctx)
		// The pod never stops writing, even after errors.
		pod(ctx, ns, "old", "raw", away, "echo started; while :; do printf old | dd of=/dev/data bs=4096 conv=sync,notrunc oflag=direct 2>/dev/null; done", true)
		running(ctx, ns, "old")
		Eventually(func() string { return inPod(ctx, ns, "old", "head -c 3 /dev/data") }).WithContext(ctx).Should(Equal("old"))
		lun := lunOf(ctx, ns, "raw")

		By("cutting the worker off")
		on(ctx, away, cut("-I"))
		heal := func(ctx context.Context) {
			_, _ = run(ctx, "", "docker", "exec", away, "sh", "-c", cut("-D"))
			_, _ = run(ctx, "", "kubectl", "taint", "node", away, "node.kubernetes.io/out-of-service-") // gone already if all went well
		}
		DeferCleanup(heal, NodeTimeout(time.Minute))
		ready := func() string {
			return field(ctx, "node", away, "", `{.status.conditions[?(@.type=="Ready")].status}`)
		}
		Eventually(ready).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("Unknown"))

		By("tainting the worker as out of service")
		kubectl(ctx, "taint", "node", away, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
		Eventually(func() string { return phase(ctx, ns, "old") }).WithContext(ctx).Should(BeEmpty())
		here := targetWorker(ctx, "a")
		pod(ctx, ns, "new", "raw", here, "sleep infinity", true)
		running(ctx, ns, "new")
		inPod(ctx, ns, "new", "printf new | dd of=/dev/data bs=4096 conv=sync,notrunc oflag=direct 2>/dev/null")
		Expect(on(ctx, away, "pgrep -f 'printf ol[d]' || true")).NotTo(BeEmpty(), "the old pod has to be writing all the time")
		content := func(pod string) string {
			return inPod(ctx, ns, pod, "dd if=/dev/data bs=4096 count=1 iflag=direct status=none | head -c 3")
		}
		Consistently(content).WithArguments("new").WithContext(ctx).WithTimeout(10 * time.Second).Should(Equal("new"))

		By("reconnecting the worker")
		heal(ctx)
		Eventually(ready).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("True"))
		// The targets tell the old worker that it has no such LUN, so its I/O does not wait for
		// node.ioDeadline and everything can go.
		Eventually(func() string { return strings.TrimSpace(leftovers(ctx, away, lun)) }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeEmpty())
		Expect(content("new")).To(Equal("new"))
		deletePod(ctx, ns, "new")
		pod(ctx, ns, "back", "raw", away, "sleep infinity", true)
		running(ctx, ns, "back")
		Expect(content("back")).To(Equal("new"))
	}, NodeTimeout(15*time.Minute))
})
