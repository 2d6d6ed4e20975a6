package kind

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// under runs something while a pod writes, and judges the pod's I/O. The pod is on a worker without
// a target: it survives both of them, and its LUN follows it to neither.
func under(ctx context.Context, ns string, seconds int, do func(owner string)) (pauseMS float64) {
	GinkgoHelper()
	load(ctx, ns, "load", "data", bystander(ctx), seconds)
	owner := ownerOf(ctx, ns, "data")
	do(owner)
	return finish(ctx, ns, "load", 1000)
}

// atHome waits until the preferred node of every LUN owns it. The status of the pair is ten seconds
// old at most; a LogicalUnit shows its owner later.
func atHome(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		want, got := "", ""
		homes := map[string]int{}
		for line := range strings.Lines(lunFields(ctx, "{.status.preferredNode}")) {
			homes[strings.TrimSpace(line)]++
		}
		for _, n := range []string{"a", "b"} {
			want += fmt.Sprintf("%s owns %d ", n, homes[n])
			owned, _ := strconv.Atoi(field(ctx, "targetpair", pair, "", fmt.Sprintf(`{.status.nodes[?(@.name=="%s")].owned}`, n))) // empty: 0
			got += fmt.Sprintf("%s owns %d ", n, owned)
		}
		g.Expect(got).To(Equal(want))
	}).WithContext(ctx).WithTimeout(90 * time.Second).Should(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(lunFields(ctx, "{.metadata.name} {.status.owner}")).To(Equal(lunFields(ctx, "{.metadata.name} {.status.preferredNode}")))
	}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
}

// lunFields are fields of the LUNs of the pair, one LUN a line.
func lunFields(ctx context.Context, fields string) string {
	GinkgoHelper()
	return kubectl(ctx, "get", "logicalunit", "-o", fmt.Sprintf(`jsonpath={range .items[?(@.spec.placement.pair=="%s")]}%s{"\n"}{end}`, pair, fields))
}

var _ = Describe("a pod that writes", func() {
	var ns string
	BeforeEach(func(ctx context.Context) { ns = volume(ctx) }, NodeTimeout(6*time.Minute))

	It("sees a short pause when its owner is killed", Label("smoke"), func(ctx context.Context) {
		pause := under(ctx, ns, 20, func(owner string) {
			killTarget(ctx, targetWorker(ctx, owner), owner)
		})
		results.OwnerLoss = max(results.OwnerLoss, pause)
		GinkgoWriter.Printf("owner killed: longest operation %.0f ms\n", pause)
	}, NodeTimeout(8*time.Minute))

	It("sees a short pause when its owner's process crashes", Label("smoke"), func(ctx context.Context) {
		before := map[string]string{}
		restarts := func(node string) string {
			return field(ctx, "pod", targetPod(node), namespace, "{.status.containerStatuses[0].restartCount}")
		}
		crashed := ""
		pause := under(ctx, ns, 20, func(owner string) {
			crashed, before[owner] = owner, restarts(owner)
			crashTarget(ctx, targetWorker(ctx, owner), owner)
		})
		results.OwnerCrash = max(results.OwnerCrash, pause)
		GinkgoWriter.Printf("owner's process crashed: longest operation %.0f ms\n", pause)
		Expect(restarts(crashed)).To(Equal(before[crashed]), "the container was restarted: what was killed is the supervisor")
		other := map[string]string{"a": "b", "b": "a"}[crashed]
		Expect(kubectl(ctx, "logs", "-n", namespace, targetPod(other))).To(ContainSubstring("its supervisor has reported that the peer's process has ended"))
		Eventually(func(g Gomega) {
			g.Expect(field(ctx, "targetpair", pair, "", fmt.Sprintf(`{.status.nodes[?(@.name=="%s")].crashes}`, crashed))).To(ContainSubstring("SIGKILL"))
			g.Expect(kubectl(ctx, "get", "events", "-A", "--field-selector", "reason=Crashed", "-o", "jsonpath={.items[*].note}{.items[*].message}")).To(ContainSubstring("the process of node " + crashed + " crashed"))
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		inSync(ctx)
	}, NodeTimeout(8*time.Minute))

	It("sees a short pause when its owner's pod is deleted", func(ctx context.Context) {
		pause := under(ctx, ns, 25, func(owner string) {
			kubectl(ctx, "delete", "pod", "-n", namespace, targetPod(owner), "--wait=false")
		})
		results.Transfer = max(results.Transfer, pause)
		GinkgoWriter.Printf("owner's pod deleted: longest operation %.0f ms\n", pause)
	}, NodeTimeout(8*time.Minute))

	for _, how := range []struct{ name, stop, start string }{{"paused", "pause", "unpause"}, {"stopped", "stop", "start"}} {
		It("continues when the worker of its owner is "+how.name, func(ctx context.Context) {
			pause := under(ctx, ns, 40, func(owner string) {
				worker := targetWorker(ctx, owner)
				args := []string{how.stop}
				if how.stop == "stop" {
					args = append(args, "-t", "1")
				}
				_, err := run(ctx, "", "docker", append(args, worker)...)
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(func(ctx context.Context) {
					_, _ = run(ctx, "", "docker", how.start, worker) // done already if all went well
				}, NodeTimeout(time.Minute))
				Eventually(func() string { return condition(ctx, "targetpair", pair, "", "InSync") }).WithContext(ctx).Should(Equal("False"))
				_, err = run(ctx, "", "docker", how.start, worker)
				Expect(err).NotTo(HaveOccurred())
			})
			results.OwnerLoss = max(results.OwnerLoss, pause)
			GinkgoWriter.Printf("owner's worker %s: longest operation %.0f ms\n", how.name, pause)
		}, NodeTimeout(10*time.Minute))
	}

	It("does not notice the operator, the driver and the node plugin being killed", func(ctx context.Context) {
		under(ctx, ns, 20, func(string) {
			deleteComponents(ctx, "--grace-period=0", "--force")
			// A volume that is requested in this time is provisioned.
			claim(ctx, ns, "meanwhile", "320Mi", "Filesystem", "")
			pod(ctx, ns, "meanwhile", "meanwhile", "", "sleep infinity", false)
			running(ctx, ns, "meanwhile")
		})
	}, NodeTimeout(8*time.Minute))

	// The pod writes until the volume is back at its preferred node.
	It("does not notice an upgrade, and its volume is at its preferred node afterwards", func(ctx context.Context) {
		under(ctx, ns, 150, func(string) {
			before := field(ctx, "storagecluster", cluster, "", "{.spec.lease}")
			lease := "600ms"
			if before == lease {
				lease = "500ms"
			}
			// Any change of what targets run is rolled out the same way; the lease can be changed
			// without a second image.
			kubectl(ctx, "patch", "storagecluster", cluster, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"lease":"%s"}}`, lease))
			Eventually(func() string { return condition(ctx, "storagecluster", cluster, "", "UpToDate") }).WithContext(ctx).Should(Equal("False"))
			Eventually(func() string { return condition(ctx, "storagecluster", cluster, "", "UpToDate") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("True"))
			inSync(ctx)
			atHome(ctx)
		})
	}, NodeTimeout(12*time.Minute))
})
