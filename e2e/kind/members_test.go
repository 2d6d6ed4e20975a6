package kind

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A cluster of its own, as for pools. The volumes that come and go are in memory.
const (
	membersCluster = "members"
	membersPair    = "members-p0"
	membersDir     = "/var/lib/gemel-backing/members-e2e"
	membersMore    = "/var/lib/members-e2e-more"
)

func forgetMembers(ctx context.Context) {
	GinkgoHelper()
	forgetCluster(ctx, membersCluster, "members", fmt.Sprintf("umount %[2]s; rm -rf %[1]s %[2]s", membersDir, membersMore), "e2e-member-disks", "e2e-member-more", "e2e-members")
}

var _ = Describe("a volume of a pool", func() {
	It("comes and goes under load", func(ctx context.Context) {
		DeferCleanup(forgetMembers, NodeTimeout(8*time.Minute))
		for _, w := range workers(ctx) {
			on(ctx, w, fmt.Sprintf("mkdir -p %[1]s %[2]s && mount -t tmpfs -o size=512m members-e2e %[2]s", membersDir, membersMore))
		}
		localVolumes(ctx, "members", "e2e-member-disks", membersDir)
		localVolumes(ctx, "members", "e2e-member-more", membersMore)
		apply(ctx, namespace, fmt.Sprintf(`apiVersion: gemel.storage/v1alpha1
kind: StorageCluster
metadata: {name: %s}
spec:
  pairs: 1
  pools:
  - {name: main, storageClassName: e2e-member-disks, size: 1Gi}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-members}
provisioner: csi.gemel.storage
parameters:
  cluster: %[1]s
  csi.storage.k8s.io/fstype: ext4
`, membersCluster))
		pair := func(path string) func() string {
			return func() string { return field(ctx, "targetpair", membersPair, "", path) }
		}
		Eventually(pair(`{.status.conditions[?(@.type=="InSync")].status}`)).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("True"))
		ns := newNamespace(ctx)
		claimOf(ctx, ns, "data", "e2e-members", "128Mi", "Filesystem", "")
		load(ctx, ns, "load", "data", "", 180)

		settled := func(names string) {
			GinkgoHelper()
			Eventually(pair(`{range .status.nodes[*]}{.members[*].name};{end}`)).WithContext(ctx).WithTimeout(5 * time.Minute).Should(Equal(names))
			Eventually(pair(`{.status.conditions[?(@.type=="UpToDate")].status}`)).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("True"))
			Eventually(pair(`{.status.conditions[?(@.type=="InSync")].status}`)).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Equal("True"))
		}
		By("adding a volume to each node")
		kubectl(ctx, "patch", "storagecluster", membersCluster, "--type=json", "-p",
			`[{"op":"add","path":"/spec/pools/0/volumes","value":[{"name":"more","storageClassName":"e2e-member-more","size":"1Gi"}]}]`)
		settled("home more-0;home more-0;")

		By("writing to a volume that is spread over both")
		claimOf(ctx, ns, "late", "e2e-members", "128Mi", "Filesystem", "")
		load(ctx, ns, "late", "late", "", 60)
		Eventually(func() int {
			w := field(ctx, "pod", "gemel-"+membersPair+"-a-0", namespace, "{.spec.nodeName}")
			n := 0
			_, err := fmt.Sscan(on(ctx, w, fmt.Sprintf("du -sk %s | cut -f1", membersMore)), &n)
			Expect(err).NotTo(HaveOccurred())
			return n
		}).WithContext(ctx).WithTimeout(2*time.Minute).Should(BeNumerically(">", 4<<10), "KiB in the new volume")

		By("taking the volumes away again")
		kubectl(ctx, "patch", "storagecluster", membersCluster, "--type=json", "-p", `[{"op":"remove","path":"/spec/pools/0/volumes"}]`)
		settled(";;")
		for _, n := range []string{"a", "b"} {
			Expect(field(ctx, "pvc", "gemel-"+membersPair+"-"+n+"-d0.main.more-0", namespace, `{.metadata.annotations.gemel\.storage/empty}`)).To(Equal("true"))
		}

		By("checking the load")
		Expect(finish(ctx, ns, "late", 1000)).To(BeNumerically("<", 20_000))
		Expect(finish(ctx, ns, "load", 1000)).To(BeNumerically("<", 20_000))
	}, NodeTimeout(25*time.Minute))
})
