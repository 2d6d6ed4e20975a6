package kind

import (
	"context"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("an administrator", func() {
	It("cannot delete objects that hold data by mistake", Label("smoke"), func(ctx context.Context) {
		ns := newNamespace(ctx)
		claim(ctx, ns, "data", "64Mi", "Block", "")
		Eventually(func() string { return field(ctx, "pvc", "data", ns, "{.status.phase}") }).WithContext(ctx).Should(Equal("Bound"))
		lun := lunOf(ctx, ns, "data")
		_, err := run(ctx, "", "kubectl", "delete", "logicalunit", lun, "--wait=false")
		Expect(err).To(MatchError(ContainSubstring("it holds data")))
		Eventually(func() string { return field(ctx, "targetpair", pair, "", "{.status.logicalUnits}") }).WithContext(ctx).ShouldNot(Or(Equal("0"), BeEmpty()))
		Eventually(func() string { return field(ctx, "storagecluster", cluster, "", "{.status.logicalUnits}") }).WithContext(ctx).ShouldNot(Or(Equal("0"), BeEmpty()))
		for _, o := range []string{"targetpair/" + pair, "storagecluster/" + cluster} {
			_, err := run(ctx, "", "kubectl", "delete", o, "--wait=false")
			Expect(err).To(MatchError(ContainSubstring("LUNs: delete their volumes first")), o)
		}
	}, NodeTimeout(4*time.Minute))

	It("sees the state of the cluster in the columns of kubectl get", func(ctx context.Context) {
		out := kubectl(ctx, "get", "storagecluster,targetpair,host")
		Expect(out).To(ContainSubstring("INSYNC"))
		Expect(out).To(ContainSubstring("Userspace"))
		for _, kind := range []string{"storagecluster.spec.pools", "targetpair.spec.replace", "logicalunit.spec.hosts"} {
			Expect(kubectl(ctx, "explain", kind)).To(ContainSubstring("DESCRIPTION"))
		}
	}, NodeTimeout(time.Minute))

	It("sees which LUNs are busy, and at which nodes", func(ctx context.Context) {
		ns := newNamespace(ctx)
		claim(ctx, ns, "data", "64Mi", "Block", "")
		pod(ctx, ns, "busy", "data", "", "while true; do dd if=/dev/data of=/dev/null bs=64k count=256 iflag=direct status=none; done", true)
		running(ctx, ns, "busy")
		lun := lunOf(ctx, ns, "data")
		owner := func() string { return field(ctx, "logicalunit", lun, "", "{.status.owner}") }
		var row []string
		Eventually(func(g Gomega) {
			row = topRow(ctx, lun)
			g.Expect(strconv.Atoi(row[3])).To(BeNumerically(">", 10)) // reads a second
			// The LUN may have followed its pod a moment ago.
			g.Expect(row[2]).To(Equal(owner()))
			g.Expect(row[10]).To(Equal("0%"), "the pod uses the path to the owner")
		}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
		Expect(row[1]).To(Equal(pair))
		nodes, err := run(ctx, "", "kubectl", "gemel", "top", "nodes")
		Expect(err).NotTo(HaveOccurred())
		Expect(nodes).To(And(MatchRegexp(`(?m)^`+pair+` +a `), MatchRegexp(`(?m)^`+pair+` +b `)))
	}, NodeTimeout(5*time.Minute))

	It("sees in an event why a claim cannot be placed", func(ctx context.Context) {
		ns := newNamespace(ctx)
		claim(ctx, ns, "huge", "5Ti", "Block", "")
		Eventually(func() string {
			return kubectl(ctx, "get", "events", "-n", ns, "-o", "jsonpath={.items[*].message}")
		}).WithContext(ctx).Should(ContainSubstring(pair))
		Expect(field(ctx, "pvc", "huge", ns, "{.status.phase}")).To(Equal("Pending"))
	}, NodeTimeout(4*time.Minute))
})
