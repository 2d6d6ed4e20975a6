package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Every spec of this file has the same pair and worker.
var _ = Describe("a worker's volumes", Ordered, func() {
	var w *worker
	BeforeAll(func(ctx SpecContext) { _, w = newWorkerRig(ctx, "lifecycle") })
	AfterEach(func() { tellFailure(w) })

	for _, fs := range []string{"xfs", "ext4", ""} {
		labels := hazard(23)
		if fs == "xfs" {
			labels = append(labels, "smoke")
		}
		It(fmt.Sprintf("are staged, published, expanded and removed: %s", map[string]string{"": "raw"}[fs]+fs), labels, func(ctx SpecContext) {
			v, err := w.create(ctx, 512<<20, "a", fs)
			Expect(err).NotTo(HaveOccurred())
			Expect(v.stage(ctx)).To(Succeed())
			Expect(v.stage(ctx)).To(Succeed(), "again")
			Expect(v.publish(ctx)).To(Succeed())
			Expect(v.publish(ctx)).To(Succeed(), "again")
			out, err := w.Shell(ctx, "multipath -ll; cat /proc/self/mounts | grep kubelet")
			Expect(err).NotTo(HaveOccurred())
			GinkgoWriter.Println(out)
			Expect(out).To(ContainSubstring("active ready running"))
			size, err := v.expand(ctx, 768<<20)
			Expect(err).NotTo(HaveOccurred())
			Expect(size).To(BeEquivalentTo(768 << 20))
			if fs != "" {
				out, err := w.Shell(ctx, "df -B1 --output=size "+v.path()+" | tail -1")
				Expect(err).NotTo(HaveOccurred())
				var n int64
				fmt.Sscan(out, &n)
				Expect(n).To(BeNumerically(">", 600<<20))
			}
			Expect(v.unpublish(ctx)).To(Succeed())
			Expect(v.unstage(ctx)).To(Succeed())
			Expect(v.unstage(ctx)).To(Succeed(), "again")
			Expect(w.left(ctx)).To(BeEmpty())
		})
	}

	// The operator takes a worker that does not ask for one that does not look who owns a LUN.
	It("are not used without repeated queries for the target port groups of both nodes", func(ctx SpecContext) {
		v := w.raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		for i := range 2 {
			attached := time.Now()
			Eventually(ctx, func(g Gomega) {
				a, err := w.rig.pair.Client(i).ListSessions(ctx, &targetv1.ListSessionsRequest{HostIqn: w.iqn})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(a.Sessions).To(HaveLen(1))
				g.Expect(a.Sessions[0].LastRtpg.AsTime()).To(BeTemporally(">", attached.Add(10*time.Second)), "later than what making the map asks")
			}, time.Minute, time.Second).Should(Succeed(), "node %s", harness.Names[i])
		}
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})
})

// newWorkerRig starts a pair and one worker for the specs of a container.
func newWorkerRig(ctx context.Context, name string, options ...func(*harness.Options)) (*rig, *worker) {
	GinkgoHelper()
	r, err := newRig(ctx, filepath.Join(work, name), os.Getenv(labEnv), target, options...)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(r.close()).To(Succeed()) })
	w, err := r.worker(ctx, name)
	Expect(err).NotTo(HaveOccurred())
	return r, w
}

// raw makes a small volume without a filesystem, which node a owns.
func (w *worker) raw(ctx context.Context) *volume {
	GinkgoHelper()
	v, err := w.create(ctx, 64<<20, "a", "")
	Expect(err).NotTo(HaveOccurred())
	return v
}

// sh is what a line of bash prints, without its end.
func (w *worker) sh(ctx context.Context, line string) string {
	GinkgoHelper()
	out, err := w.Shell(ctx, line)
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}
