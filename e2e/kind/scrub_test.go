package kind

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// lastScrub is a field of the last result of the pair's scrubs.
func lastScrub(ctx context.Context, name string) string {
	return field(ctx, "targetpair", pair, "", "{.status.scrub.lastResult."+name+"}")
}

var _ = Describe("a scrub", func() {
	It("finds a byte that a disk has changed, names it, and repairs it", func(ctx context.Context) {
		ns := newNamespace(ctx)
		claim(ctx, ns, "data", "64Mi", "Block", "")
		Eventually(func() string { return field(ctx, "pvc", "data", ns, "{.status.phase}") }).WithContext(ctx).Should(Equal("Bound"))
		lun := lunOf(ctx, ns, "data")
		Eventually(func() string { return field(ctx, "logicalunit", lun, "", "{.status.owner}") }).WithContext(ctx).Should(BeElementOf("a", "b"))
		other := "a"
		if field(ctx, "logicalunit", lun, "", "{.status.owner}") == "a" {
			other = "b"
		}
		id := field(ctx, "logicalunit", lun, "", "{.spec.placement.uuid}")
		worker := targetWorker(ctx, other)
		file := strings.TrimSpace(on(ctx, worker, "find /var/lib/gemel-backing -path '*/volumes/default/luns/"+id+".img'"))
		Expect(file).NotTo(BeEmpty())
		on(ctx, worker, fmt.Sprintf("printf rot | dd of=%s bs=1 seek=$((9 << 20)) conv=notrunc status=none", file))

		out, err := run(ctx, "", "kubectl", "gemel", "scrub", pair, "--wait")
		Expect(err).NotTo(HaveOccurred()) // the checksum says which copy is the damaged one
		Expect(out).To(ContainSubstring("1 ranges differed, 1 repaired"))
		events := func() string { return kubectl(ctx, "get", "events", "-A", "-o", "jsonpath={.items[*].message}") }
		Eventually(events).WithContext(ctx).Should(ContainSubstring("LUN or snapshot %s (%s) at 9437184+1048576: the two copies differ", id, lun))
		Eventually(func() string { return lastScrub(ctx, "result") }).WithContext(ctx).Should(Equal("Repaired"))
		Eventually(events).WithContext(ctx).Should(ContainSubstring("%s (%s) at 9437184+1048576 was repaired from the copy that hosts read", id, lun))
		Eventually(func() string { return lastScrub(ctx, "repairedRanges") }).WithContext(ctx).Should(Equal("1"))
		Expect(kubectl(ctx, "get", "targetpair", pair, "-o", "wide")).To(ContainSubstring("Repaired"))
	}, NodeTimeout(6*time.Minute))

	It("begins by the schedule of the cluster", func(ctx context.Context) {
		before := lastScrub(ctx, "id")
		kubectl(ctx, "patch", "storagecluster", cluster, "--type=merge", "-p", `{"spec":{"scrub":{"schedule":"* * * * *"}}}`)
		DeferCleanup(func(ctx context.Context) {
			kubectl(ctx, "patch", "storagecluster", cluster, "--type=merge", "-p", `{"spec":{"scrub":{"schedule":"0 2 * * 6"}}}`)
		}, NodeTimeout(time.Minute))
		Eventually(func() string { return lastScrub(ctx, "id") }).WithContext(ctx).WithTimeout(3 * time.Minute).ShouldNot(Or(Equal(before), BeEmpty()))
		Expect(field(ctx, "targetpair", pair, "", "{.status.scrub.origin}")).To(Equal("Schedule"))
		Expect(lastScrub(ctx, "result")).To(Equal("Clean"))
		_, err := run(ctx, "", "kubectl", "patch", "storagecluster", cluster, "--type=merge", "-p", `{"spec":{"scrub":{"schedule":"@weekly"}}}`)
		Expect(err).To(MatchError(ContainSubstring("schedule: five fields")))
	}, NodeTimeout(5*time.Minute))
})
