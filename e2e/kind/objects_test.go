package kind

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("objects that are deleted by force", Serial, func() {
	It("are restored from the disks, while pods continue to write", func(ctx context.Context) {
		inSync(ctx)
		ns := newNamespace(ctx)
		claim(ctx, ns, "data", "320Mi", "Filesystem", "")
		claim(ctx, ns, "idle", "320Mi", "Filesystem", "")
		keepFile(ctx, ns, "idle")
		busy, idle := lunOf(ctx, ns, "data"), lunOf(ctx, ns, "idle")
		uids := func() string {
			return field(ctx, "pod", targetPod("a"), namespace, "{.metadata.uid}") + field(ctx, "pod", targetPod("b"), namespace, "{.metadata.uid}")
		}
		before := uids()
		Expect(before).NotTo(BeEmpty())
		under(ctx, ns, 60, func(string) {
			hosts := field(ctx, "logicalunit", busy, "", "{.spec.hosts}")
			Expect(hosts).To(ContainSubstring("iqn."))
			By("deleting them")
			kubectl(ctx, "delete", "validatingadmissionpolicybinding", "gemel-keeps-data")
			DeferCleanup(func(ctx context.Context) { install(ctx) }, NodeTimeout(6*time.Minute)) // puts the policy back
			const kinds = "storagecluster,targetpair,logicalunit,logicalunitsnapshot,host"
			Eventually(func() error { // the API server forgets the policy a moment later
				_, err := run(ctx, "", "kubectl", "delete", kinds, "--all", "--wait=false")
				return err
			}).WithContext(ctx).Should(Succeed())
			Eventually(func() string {
				for _, o := range strings.Fields(kubectl(ctx, "get", kinds, "-o", "name")) {
					_, _ = run(ctx, "", "kubectl", "patch", o, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`) // it may be gone already
				}
				return kubectl(ctx, "get", "storagecluster,targetpair,logicalunit,logicalunitsnapshot", "-o", "name")
			}).WithContext(ctx).Should(BeEmpty())

			By("importing them")
			out, err := run(ctx, "", "kubectl", "gemel", "import")
			Expect(err).NotTo(HaveOccurred())
			Expect(out).To(ContainSubstring("nothing was changed"))
			Expect(kubectl(ctx, "get", "logicalunit", "-o", "name")).To(BeEmpty())
			out, err = run(ctx, "", "kubectl", "gemel", "import", "--apply")
			Expect(err).NotTo(HaveOccurred())
			GinkgoWriter.Println(out)
			for _, l := range []string{busy, idle} {
				Eventually(func() string { return condition(ctx, "logicalunit", l, "", "Ready") }).WithContext(ctx).Should(Equal("True"))
			}
			Expect(field(ctx, "logicalunit", busy, "", "{.spec.hosts}")).To(Equal(hosts))
			inSync(ctx)
		})
		Expect(uids()).To(Equal(before), "no target was restarted")
		Eventually(func() string { return condition(ctx, "targetpair", pair, "", "UpToDate") }).WithContext(ctx).Should(Equal("True"))
		Expect(orphans(ctx)).To(BeEmpty())
		fileKept(ctx, ns, "idle")
		kubectl(ctx, "delete", "pod,pvc", "-n", ns, "--all", "--wait=true", "--timeout=180s")
		for _, l := range []string{busy, idle} {
			Eventually(func() string { return field(ctx, "logicalunit", l, "", "{.metadata.name}") }).WithContext(ctx).Should(BeEmpty())
		}
	}, NodeTimeout(14*time.Minute))
})
