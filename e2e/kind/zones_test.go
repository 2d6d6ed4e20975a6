package kind

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A cluster of its own, with two pairs between two zones. The third worker is moved to the first
// zone meanwhile.
const (
	zonesCluster = "zones"
	zonesClass   = "e2e-zones"
	zonesDisks   = "e2e-zones-disks"
	zonesDir     = "/var/lib/gemel-backing/zones-e2e"
	zoneLabel    = "topology.kubernetes.io/zone"
	zonesClaims  = 20
)

var zonesPairs = []string{zonesCluster + "-p0", zonesCluster + "-p1"}

// moveToZone labels a worker, and restarts its node plugin, which reports the zone when it starts.
func moveToZone(ctx context.Context, worker, zone string) {
	GinkgoHelper()
	kubectl(ctx, "label", "node", worker, zoneLabel+"="+zone, "--overwrite")
	kubectl(ctx, "delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/component=csi-node", "--field-selector=spec.nodeName="+worker, "--wait=true")
	kubectl(ctx, "rollout", "status", "-n", namespace, "daemonset/gemel-csi-node", "--timeout=120s")
	Eventually(func() string { return field(ctx, "csinode", worker, "", "{.spec.drivers[*].topologyKeys}") }).WithContext(ctx).Should(ContainSubstring(zoneLabel))
}

// zonesUp makes the cluster of the specs, and waits until its pairs are in sync.
func zonesUp(ctx context.Context, zoneA, zoneB string) {
	GinkgoHelper()
	dirs := []string{zonesDir + "/0", zonesDir + "/1"}
	for _, w := range workers(ctx) {
		on(ctx, w, "mkdir -p "+strings.Join(dirs, " "))
	}
	localVolumes(ctx, "zones", zonesDisks, dirs...)
	apply(ctx, namespace, fmt.Sprintf(`apiVersion: gemel.storage/v1alpha1
kind: StorageCluster
metadata: {name: %[1]s}
spec:
  pairs: 2
  lease: 2s # the machine may be busy
  failureDomainKey: %[2]s
  domains:
  - {between: [%[3]s, %[4]s], pairs: 2}
  pools:
  - {name: main, storageClassName: %[5]s, size: 1Gi}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %[6]s}
provisioner: csi.gemel.storage
volumeBindingMode: WaitForFirstConsumer
parameters:
  cluster: %[1]s
  csi.storage.k8s.io/fstype: ext4
`, zonesCluster, zoneLabel, zoneA, zoneB, zonesDisks, zonesClass))
	zonesInSync(ctx)
}

func zonesInSync(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() string {
		return field(ctx, "storagecluster", zonesCluster, "", "{.status.domains[*].readyPairs}")
	}).WithContext(ctx).
		WithTimeout(6*time.Minute).Should(Equal("2"), func() string {
		return kubectl(context.Background(), "get", "storagecluster,targetpair", "-o", "yaml")
	})
}

// forgetZones removes what the specs have made.
func forgetZones(ctx context.Context) {
	GinkgoHelper()
	forgetCluster(ctx, zonesCluster, "zones", "rm -rf "+zonesDir, zonesClass, zonesDisks)
}

// hostBytes are the bytes of hosts' commands that arrived at a target node, by LUN: those that it
// executed itself, and those that it handed to the owner.
func hostBytes(ctx context.Context, pod string) map[string]uint64 {
	GinkgoHelper()
	out := map[string]uint64{}
	for line := range strings.Lines(kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+namespace+"/pods/"+pod+":9260/proxy/metrics")) {
		labels, ok := strings.CutPrefix(line, "gemel_lun_bytes_total{")
		if !ok || strings.Contains(labels, `way="remote"`) {
			continue
		}
		labels, value, _ := strings.Cut(labels, "} ")
		_, lun, _ := strings.Cut(labels, `lun="`)
		lun, _, _ = strings.Cut(lun, `"`)
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		Expect(err).NotTo(HaveOccurred(), line)
		out[lun] += uint64(n)
	}
	return out
}

// traffic is the bytes that workers and targets have exchanged, by LUN and target pod.
func traffic(ctx context.Context) map[string]map[string]uint64 {
	GinkgoHelper()
	out := map[string]map[string]uint64{}
	for _, p := range zonesPairs {
		for _, n := range []string{"a", "b"} {
			pod := "gemel-" + p + "-" + n + "-0"
			for lun, bytes := range hostBytes(ctx, pod) {
				if out[lun] == nil {
					out[lun] = map[string]uint64{}
				}
				out[lun][pod] = bytes
			}
		}
	}
	return out
}

// crossZone sums what was exchanged between two looks, in all and across zones. consumers has the
// worker of each claim.
func crossZone(ctx context.Context, ns string, consumers map[string]string, before, after map[string]map[string]uint64) (all, cross uint64) {
	GinkgoHelper()
	at := map[string]string{} // zone of each target
	for name, worker := range consumers {
		lun := field(ctx, "logicalunit", lunOf(ctx, ns, name), "", "{.spec.placement.uuid}")
		Expect(after).To(HaveKey(lun), name)
		for pod, bytes := range after[lun] {
			Expect(bytes).To(BeNumerically(">=", before[lun][pod]), "%s was started again", pod)
			if at[pod] == "" {
				at[pod] = zoneOf(ctx, field(ctx, "pod", pod, namespace, "{.spec.nodeName}"))
			}
			all += bytes - before[lun][pod]
			if at[pod] != zoneOf(ctx, worker) {
				cross += bytes - before[lun][pod]
			}
		}
	}
	return all, cross
}

var _ = Describe("two zones with two pairs across them", Ordered, func() {
	var ns, zoneA, zoneB string
	var inA, inB []string // workers
	consumers := map[string]string{}

	BeforeAll(func(ctx context.Context) {
		inSync(ctx)
		w := workers(ctx)
		Expect(len(w)).To(BeNumerically(">=", 3))
		inA, inB = []string{w[0], w[2]}, []string{w[1]}
		zoneA, zoneB = zoneOf(ctx, w[0]), zoneOf(ctx, w[1])
		third := zoneOf(ctx, w[2])
		Expect(zoneA).NotTo(Equal(zoneB))
		DeferCleanup(func(ctx context.Context) { moveToZone(ctx, w[2], third) }, NodeTimeout(4*time.Minute))
		moveToZone(ctx, w[2], zoneA)
		DeferCleanup(forgetZones, NodeTimeout(8*time.Minute))
		zonesUp(ctx, zoneA, zoneB)
		ns = newNamespace(ctx)
	}, NodeTimeout(15*time.Minute))

	It("keep the traffic of pods in their zones", func(ctx context.Context) {
		for i := range zonesClaims {
			name := fmt.Sprintf("c%02d", i)
			worker := []string{inA[0], inB[0], inA[1], inB[0]}[i%4]
			claimOf(ctx, ns, name, zonesClass, "96Mi", "Filesystem", "")
			pod(ctx, ns, name, name, worker, "exec sleep infinity", false)
			consumers[name] = worker
			if i%4 == 3 { // twenty at once would starve the targets of a small machine
				for k := i - 3; k <= i; k++ {
					running(ctx, ns, fmt.Sprintf("c%02d", k))
				}
			}
		}
		// A target that was starved meanwhile has lost its LUNs for a while.
		zonesInSync(ctx)
		for _, p := range zonesPairs {
			Eventually(func() string { return field(ctx, "targetpair", p, "", "{.status.ownership.away}") }).WithContext(ctx).WithTimeout(3*time.Minute).Should(Equal("0"), p)
		}
		before := traffic(ctx)
		for name := range consumers {
			inPod(ctx, ns, name, `set -e; dd if=/dev/urandom of=/data/file bs=1M count=8 oflag=direct 2>/dev/null
for i in 1 2 3; do dd if=/data/file of=/dev/null bs=1M iflag=direct 2>/dev/null; done`)
		}
		all, cross := crossZone(ctx, ns, consumers, before, traffic(ctx))
		share := float64(cross) / float64(max(all, 1))
		results.Zones = &zones{Claims: zonesClaims, Bytes: all, CrossZoneShare: share}
		GinkgoWriter.Printf("%d of %d bytes went to another zone: %.3f\n", cross, all, share)
		Expect(all).To(BeNumerically(">", zonesClaims*32<<20), "each pod moves 32 MiB")
		Expect(share).To(BeNumerically("<", 0.05))
	}, NodeTimeout(12*time.Minute))

	It("serve the pods of one when the other is lost at once", func(ctx context.Context) {
		// Workers of the lab share a kernel: a volume in use on one that is lost would leave its
		// loop device behind.
		pods := map[string]string{} // by pair
		for name, worker := range consumers {
			if p := field(ctx, "logicalunit", lunOf(ctx, ns, name), "", "{.spec.placement.pair}"); worker == inB[0] && pods[p] == "" {
				pods[p] = name
				continue
			}
			kubectl(ctx, "delete", "pod", "-n", ns, name, "--wait=false")
		}
		Expect(pods).To(HaveLen(2), "a pod of the zone that stays for each pair")
		for name := range consumers {
			if pods[field(ctx, "logicalunit", lunOf(ctx, ns, name), "", "{.spec.placement.pair}")] != name {
				Eventually(func() string { return phase(ctx, ns, name) }).WithContext(ctx).Should(BeEmpty())
			}
		}
		Eventually(func() string {
			return kubectl(ctx, "get", "volumeattachment", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.nodeName!="%s")].metadata.name}`, inB[0]))
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeEmpty())
		dir := GinkgoT().TempDir()
		var probes []*probe
		for _, name := range pods {
			inPod(ctx, ns, name, "rm /data/file")
			probes = append(probes, startProbe(ctx, dir, ns, name, "probe"))
		}

		By("killing the workers of the zone")
		lost := slices.Clone(inA)
		slices.SortFunc(lost, func(x, y string) int { return cmp.Compare(addressOf(ctx, x), addressOf(ctx, y)) })
		DeferCleanup(func(ctx context.Context) {
			for _, w := range lost { // those with the lower address first, so that they get it again
				_, _ = run(ctx, "", "docker", "start", w)
			}
		}, NodeTimeout(2*time.Minute))
		_, err := run(ctx, "", "docker", append([]string{"kill"}, lost...)...)
		Expect(err).NotTo(HaveOccurred())
		for _, p := range probes {
			before, err := p.ask(ctx, "count")
			Expect(err).NotTo(HaveOccurred())
			Eventually(func() (int64, error) {
				m, err := p.ask(ctx, "count")
				return m.Operations - before.Operations, err
			}).WithContext(ctx).WithTimeout(time.Minute).Should(BeNumerically(">", 2000))
		}

		By("bringing the zone back")
		for _, w := range lost {
			_, err := run(ctx, "", "docker", "start", w)
			Expect(err).NotTo(HaveOccurred())
		}
		for _, w := range lost {
			Eventually(func() string {
				return field(ctx, "node", w, "", `{.status.conditions[?(@.type=="Ready")].status}`)
			}).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("True"))
		}
		zonesInSync(ctx)
		inSync(ctx)
		for _, p := range probes {
			m := p.finish(ctx)
			results.Zones = cmp.Or(results.Zones, &zones{})
			results.Zones.Lost = max(results.Zones.Lost, m.LongestMS)
			results.Zones.LostOperations += m.Operations
		}
		GinkgoWriter.Printf("zone lost: %d operations, the longest took %.0f ms\n", results.Zones.LostOperations, results.Zones.Lost)
		Expect(results.Zones.Lost).To(BeNumerically("<", 30_000))
	}, NodeTimeout(20*time.Minute))
})

// addressOf a worker in the network of the lab, in a form that can be compared.
func addressOf(ctx context.Context, worker string) string {
	GinkgoHelper()
	out, err := run(ctx, "", "docker", "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", worker)
	Expect(err).NotTo(HaveOccurred())
	var parts []string
	for f := range strings.SplitSeq(out, ".") {
		n, err := strconv.Atoi(f)
		Expect(err).NotTo(HaveOccurred(), out)
		parts = append(parts, fmt.Sprintf("%03d", n))
	}
	return strings.Join(parts, ".")
}
