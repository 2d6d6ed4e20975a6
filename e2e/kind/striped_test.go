package kind

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// legsOf a striped volume, in their order, with fields of each.
func legsOf(ctx context.Context, volume, fields string) []string {
	GinkgoHelper()
	return strings.Split(strings.TrimSpace(kubectl(ctx, "get", "logicalunit", "-l", "gemel.storage/striped="+volume, "--sort-by={.spec.leg.number}",
		"-o", fmt.Sprintf(`jsonpath={range .items[*]}%s{"\n"}{end}`, fields))), "\n")
}

// stripedWriter writes record k to one of four LUNs, chosen at random, at block k of that LUN,
// after record k-1 was acknowledged, most often by another LUN: as orderWriter, on one volume.
// Stripes have 64 blocks.
const stripedWriter = `fio --name=load --filename=/dev/data --offset=%[1]dm --size=48m --direct=1 --ioengine=libaio --iodepth=4 --rw=randwrite --bs=4k \
  --rate_iops=300 --time_based --runtime=3600 --output=/tmp/fio &
for ((k = 1; k < %[2]d; k++)); do
  echo $k | dd of=/dev/data bs=4096 seek=$(((k / 64 * 4 + RANDOM %% 4) * 64 + k %% 64)) conv=notrunc,sync oflag=direct,dsync status=none || exit 1
  echo $k >/tmp/acked.new && mv /tmp/acked.new /tmp/acked && sleep 0.01
done
wait`

// readStriped is readRecords for such a volume.
const readStriped = `dd if=/dev/data iflag=direct bs=1M count=%d status=none | tr -d '\0' | sort -n >/tmp/got
n=$(wc -l </tmp/got); seq 1 $n | diff - /tmp/got | head -n 5 >/tmp/wrong; if [ -s /tmp/wrong ]; then cat /tmp/wrong; else echo $n; fi`

// stripedClass makes a StorageClass with four LUNs for one spec.
func stripedClass(ctx context.Context, name string) {
	GinkgoHelper()
	stripedClassOf(ctx, name, 4)
}

func stripedClassOf(ctx context.Context, name string, luns int) {
	GinkgoHelper()
	DeferCleanup(func(ctx context.Context) { kubectl(ctx, "delete", "storageclass", name, "--ignore-not-found") }, NodeTimeout(time.Minute))
	apply(ctx, namespace, fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.gemel.storage
allowVolumeExpansion: true
parameters:
  cluster: %s
  luns: "%d"
  csi.storage.k8s.io/fstype: xfs
`, name, cluster, luns))
}

var _ = Describe("a striped volume", func() {
	It("is spread over both nodes, outlives an owner, grows, and goes with all of its LUNs", func(ctx context.Context) {
		const class = "e2e-striped"
		inSync(ctx)
		DeferCleanup(func(ctx context.Context) { inSync(ctx) }, NodeTimeout(6*time.Minute))
		stripedClass(ctx, class)
		ns := newNamespace(ctx)
		claimOf(ctx, ns, "data", class, "402Mi", "Filesystem", "")
		load(ctx, ns, "load", "data", bystander(ctx), 30)
		volume := lunOf(ctx, ns, "data")

		By("seeing where its LUNs are")
		homes := legsOf(ctx, volume, "{.status.preferredNode}")
		slices.Sort(homes)
		Expect(homes).To(Equal([]string{"a", "a", "b", "b"}))
		Expect(legsOf(ctx, volume, "{.status.size}")).To(HaveEach("101Mi"))
		Expect(field(ctx, "logicalunit", volume, "", "{.status.size}")).To(Equal("404Mi"))
		Expect(legsOf(ctx, volume, "{.status.hosts[*].iqn}")).To(HaveEach(Not(BeEmpty())))

		By("killing the owner of two of them")
		killTarget(ctx, targetWorker(ctx, "a"), "a")
		GinkgoWriter.Printf("owner killed: longest operation %.0f ms\n", finish(ctx, ns, "load", 500))

		By("growing it while it is in use")
		pod(ctx, ns, "app", "data", "", "sleep infinity", false)
		running(ctx, ns, "app")
		inPod(ctx, ns, "app", "head -c 100M /dev/urandom > /data/file && sha256sum < /data/file > /data/sum && sync")
		kubectl(ctx, "patch", "pvc", "data", "-n", ns, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"800Mi"}}}}`)
		Eventually(func() string { return field(ctx, "pvc", "data", ns, "{.status.capacity.storage}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("800Mi"))
		Expect(inPod(ctx, ns, "app", "test $(df --output=size -k /data | tail -1) -gt 700000 && echo grown")).To(Equal("grown"))

		By("reading it on another worker")
		deletePod(ctx, ns, "app")
		pod(ctx, ns, "app", "data", targetWorker(ctx, "b"), "sleep infinity", false)
		running(ctx, ns, "app")
		Expect(inPod(ctx, ns, "app", "sha256sum < /data/file | diff - /data/sum && echo same")).To(Equal("same"))

		By("deleting it")
		deletePod(ctx, ns, "app")
		deletePod(ctx, ns, "load")
		kubectl(ctx, "delete", "pvc", "data", "-n", ns, "--wait=true", "--timeout=120s")
		Eventually(func() string {
			return kubectl(ctx, "get", "logicalunit", "-o", "name", "-l", "gemel.storage/striped="+volume) + kubectl(ctx, "get", "logicalunit", volume, "-o", "name", "--ignore-not-found")
		}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeEmpty())
		Expect(orphans(ctx)).To(BeEmpty())
	}, NodeTimeout(12*time.Minute))

	It("is snapshotted and cloned at one instant of all its LUNs while it is written to", func(ctx context.Context) {
		const class, areaMiB = "e2e-striped-copies", 192
		inSync(ctx)
		stripedClass(ctx, class)
		ns := newNamespace(ctx)
		claimOf(ctx, ns, "data", class, "256Mi", "Block", "")
		pod(ctx, ns, "writer", "data", bystander(ctx), fmt.Sprintf(stripedWriter, areaMiB, areaMiB<<20/4/4096), true)
		running(ctx, ns, "writer")
		volume := lunOf(ctx, ns, "data")
		// The snapshot, and the clone, have what was acknowledged before, and nothing out of order.
		check := func(name, source string, before, after int) {
			GinkgoHelper()
			claimOf(ctx, ns, name, class, "256Mi", "Block", source)
			pod(ctx, ns, name, name, "", "sleep infinity", true)
			running(ctx, ns, name)
			if after == 0 { // a clone is as the volume was when the claim was carried out
				after = acknowledged(ctx, ns)
			}
			read := inPod(ctx, ns, name, fmt.Sprintf(readStriped, areaMiB))
			GinkgoWriter.Printf("%s: %d acknowledged before, %d after, read: %s\n", name, before, after, read)
			n, err := strconv.Atoi(read)
			if err != nil || n < before {
				results.LostWrites++
			}
			Expect(err).NotTo(HaveOccurred(), "the records are no prefix: "+read)
			Expect(n).To(And(BeNumerically(">=", before), BeNumerically("<=", after+1)))
			deletePod(ctx, ns, name)
		}
		for _, name := range []string{"first", "second"} {
			before := moreWritten(ctx, ns)
			snapshot(ctx, ns, name, "data")
			after := acknowledged(ctx, ns)
			check("of-"+name, "VolumeSnapshot/"+name, before, after)
		}
		check("clone", "PersistentVolumeClaim/data", moreWritten(ctx, ns), 0)
		deletePod(ctx, ns, "writer")

		By("deleting all of it, the source first")
		kubectl(ctx, "delete", "pvc", "data", "-n", ns, "--wait=true", "--timeout=120s")
		Eventually(func() string { return kubectl(ctx, "get", "logicalunit", volume, "-o", "name", "--ignore-not-found") }).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeEmpty())
		kubectl(ctx, "delete", "pvc", "-n", ns, "--all", "--wait=true", "--timeout=120s")
		kubectl(ctx, "delete", "volumesnapshot", "-n", ns, "--all", "--wait=true", "--timeout=120s")
		Eventually(func() string {
			return kubectl(ctx, "get", "logicalunit", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.volume.namespace=="%s")].metadata.name}`, ns)) +
				kubectl(ctx, "get", "logicalunitsnapshot", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.source=="%s")].metadata.name}`, volume)) +
				kubectl(ctx, "get", "logicalunitgroupsnapshot", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.members[0].source=="%s")].metadata.name}`, volume))
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeEmpty())
		Expect(orphans(ctx)).To(BeEmpty())
	}, NodeTimeout(12*time.Minute))
})
