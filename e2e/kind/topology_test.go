package kind

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const zoneKey = "topology.kubernetes.io/zone"

// zoneOf is the zone of a worker; each worker of the lab has its own.
func zoneOf(ctx context.Context, worker string) string {
	GinkgoHelper()
	zone := field(ctx, "node", worker, "", `{.metadata.labels.topology\.kubernetes\.io/zone}`)
	Expect(zone).NotTo(BeEmpty(), worker+": the lab's cluster is of an earlier release: make kind-down kind-up")
	return zone
}

// laterClass is a class that waits for the first pod, and allows some zones, or all.
func laterClass(ctx context.Context, name string, zones ...string) {
	GinkgoHelper()
	allowed := ""
	if len(zones) > 0 {
		allowed = fmt.Sprintf("allowedTopologies:\n- matchLabelExpressions:\n  - {key: %s, values: [%s]}", zoneKey, strings.Join(zones, ", "))
	}
	apply(ctx, namespace, fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.gemel.storage
volumeBindingMode: WaitForFirstConsumer
parameters:
  cluster: %s
  csi.storage.k8s.io/fstype: ext4
%s
`, name, cluster, allowed))
	DeferCleanup(func(ctx context.Context) { kubectl(ctx, "delete", "storageclass", name, "--ignore-not-found") }, NodeTimeout(time.Minute))
}

// capacityIn is what the scheduler reads for pods in a zone.
func capacityIn(ctx context.Context, class, zone string) string {
	out, err := run(ctx, "", "kubectl", "get", "csistoragecapacity", "-n", namespace, "-o", fmt.Sprintf(
		`jsonpath={range .items[?(@.storageClassName=="%s")]}{.nodeTopology.matchLabels.topology\.kubernetes\.io/zone}={.maximumVolumeSize}{"\n"}{end}`, class))
	if err != nil {
		return "error: " + err.Error()
	}
	for line := range strings.Lines(out) {
		if z, size, _ := strings.Cut(strings.TrimSpace(line), "="); z == zone {
			return size
		}
	}
	return ""
}

// affinityOf a claim's volume: "KEY OPERATOR VALUES" of each term, sorted by Kubernetes as written.
func affinityOf(ctx context.Context, ns, claim string) string {
	GinkgoHelper()
	var volume string
	Eventually(func() string {
		volume = field(ctx, "pvc", claim, ns, "{.spec.volumeName}")
		return volume
	}).WithContext(ctx).ShouldNot(BeEmpty())
	return field(ctx, "pv", volume, "", `{range .spec.nodeAffinity.required.nodeSelectorTerms[*]}{range .matchExpressions[*]}{.key} {.operator} {.values[*]};{end}{end}`)
}

// eventsOf a pod or claim.
func eventsOf(ctx context.Context, ns, name string) func() string {
	return func() string {
		out, _ := run(ctx, "", "kubectl", "get", "events", "-n", ns, "--field-selector", "involvedObject.name="+name, "-o", "jsonpath={.items[*].message}")
		return out
	}
}

var _ = Describe("a volume for some workers", func() {
	It("is what a pool gives that only one worker reaches", func(ctx context.Context) {
		inSync(ctx)
		on := workers(ctx)
		here, there := zoneOf(ctx, on[0]), zoneOf(ctx, on[1])
		ns := newNamespace(ctx)
		laterClass(ctx, "e2e-later")
		Eventually(func() string { return capacityIn(ctx, "e2e-later", there) }).WithContext(ctx).ShouldNot(Or(BeEmpty(), Equal("0")))

		By("restricting the pool")
		DeferCleanup(func(ctx context.Context) {
			kubectl(ctx, "patch", "storagecluster", cluster, "--type=json", "-p", `[{"op":"add","path":"/spec/pools/0/accessibleFrom","value":[]}]`)
		}, NodeTimeout(time.Minute))
		kubectl(ctx, "patch", "storagecluster", cluster, "--type=json", "-p",
			fmt.Sprintf(`[{"op":"add","path":"/spec/pools/0/accessibleFrom","value":[{"matchLabels":{%q:%q}}]}]`, zoneKey, here))
		Eventually(func() string { return capacityIn(ctx, "e2e-later", there) }).WithContext(ctx).Should(Equal("0"))
		Expect(capacityIn(ctx, "e2e-later", here)).NotTo(Or(BeEmpty(), Equal("0")))

		By("checking that a pod elsewhere waits, and why says for what")
		claimOf(ctx, ns, "data", "e2e-later", "128Mi", "Filesystem", "")
		pod(ctx, ns, "elsewhere", "data", on[1], "sleep infinity", false)
		Eventually(eventsOf(ctx, ns, "elsewhere")).WithContext(ctx).Should(ContainSubstring("did not have enough free storage"))
		out, err := run(ctx, "", "kubectl", "gemel", "why", "data", "-n", ns)
		Expect(err).To(HaveOccurred())
		Expect(out).To(And(ContainSubstring("is for workers with "+zoneKey+"="+here), ContainSubstring("for example "+on[0])))
		Expect(phase(ctx, ns, "elsewhere")).To(Equal("Pending"))
		deletePod(ctx, ns, "elsewhere")

		By("running the pod on the worker that reaches it")
		pod(ctx, ns, "there", "data", on[0], "sleep infinity", false)
		running(ctx, ns, "there")
		Expect(affinityOf(ctx, ns, "data")).To(Equal(zoneKey + " In " + here + ";"))
		lun := lunOf(ctx, ns, "data")
		Expect(field(ctx, "logicalunit", lun, "", `{.spec.accessibleFrom[*].matchLabels.topology\.kubernetes\.io/zone}`)).To(Equal(here))
		Expect(kubectl(ctx, "gemel", "why", "data", "-n", ns)).To(And(ContainSubstring("to workers with "+zoneKey+"="+here), ContainSubstring("StorageCluster "+cluster)))
		deletePod(ctx, ns, "there")

		By("checking that the volume stays there, and that a copy and an immediate claim are there too")
		pod(ctx, ns, "moved", "data", on[1], "sleep infinity", false)
		Eventually(eventsOf(ctx, ns, "moved")).WithContext(ctx).Should(ContainSubstring("didn't match PersistentVolume's node affinity"))
		Expect(phase(ctx, ns, "moved")).To(Equal("Pending"))
		deletePod(ctx, ns, "moved")
		claim(ctx, ns, "now", "320Mi", "Filesystem", "")
		Expect(affinityOf(ctx, ns, "now")).To(Equal(zoneKey + " In " + here + ";"))
		claim(ctx, ns, "copy", "320Mi", "Filesystem", "PersistentVolumeClaim/now")
		Expect(affinityOf(ctx, ns, "copy")).To(Equal(zoneKey + " In " + here + ";"))

		By("opening the pool again, for new volumes only")
		kubectl(ctx, "patch", "storagecluster", cluster, "--type=json", "-p", `[{"op":"add","path":"/spec/pools/0/accessibleFrom","value":[]}]`)
		Eventually(func() string { return capacityIn(ctx, "e2e-later", there) }).WithContext(ctx).ShouldNot(Equal("0"))
		claimOf(ctx, ns, "open", "e2e-later", "128Mi", "Filesystem", "")
		pod(ctx, ns, "open", "open", on[1], "sleep infinity", false)
		running(ctx, ns, "open")
		Expect(affinityOf(ctx, ns, "open")).To(BeEmpty())
		Expect(affinityOf(ctx, ns, "data")).NotTo(BeEmpty())
	}, NodeTimeout(12*time.Minute))

	It("is what a StorageClass gives that allows some zones", func(ctx context.Context) {
		inSync(ctx)
		on := workers(ctx)
		first, second, third := zoneOf(ctx, on[0]), zoneOf(ctx, on[1]), zoneOf(ctx, on[2])
		ns := newNamespace(ctx)
		laterClass(ctx, "e2e-two-zones", first, second)
		claimOf(ctx, ns, "data", "e2e-two-zones", "128Mi", "Filesystem", "")

		By("checking that a pod elsewhere waits")
		pod(ctx, ns, "elsewhere", "data", on[2], "sleep infinity", false)
		Eventually(eventsOf(ctx, ns, "elsewhere")).WithContext(ctx).Should(ContainSubstring("didn't find available persistent volumes to bind"))
		Expect(phase(ctx, ns, "elsewhere")).To(Equal("Pending"))
		deletePod(ctx, ns, "elsewhere")

		By("moving the pod between the workers that the class allows")
		for i, w := range on[:2] {
			name := fmt.Sprint("pod-", i)
			pod(ctx, ns, name, "data", w, "sleep infinity", false)
			running(ctx, ns, name)
			inPod(ctx, ns, name, "echo "+name+" >> /data/log && sync")
			Expect(kubectl(ctx, "gemel", "why", "data", "-n", ns)).To(ContainSubstring("StorageClass e2e-two-zones (allowedTopologies)"))
			deletePod(ctx, ns, name)
		}
		Expect(affinityOf(ctx, ns, "data")).To(And(ContainSubstring(zoneKey+" In "+first+";"), ContainSubstring(zoneKey+" In "+second+";"), Not(ContainSubstring(third))))
		pod(ctx, ns, "third", "data", on[2], "sleep infinity", false)
		Eventually(eventsOf(ctx, ns, "third")).WithContext(ctx).Should(ContainSubstring("didn't match PersistentVolume's node affinity"))
		deletePod(ctx, ns, "third")
	}, NodeTimeout(10*time.Minute))
})
