package kind

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("an uninstallation", Serial, func() {
	It("leaves exactly what the documentation says, and a new installation uses it", func(ctx context.Context) {
		inSync(ctx)
		ns := newNamespace(ctx)
		claim(ctx, ns, "data", "320Mi", "Filesystem", "")
		keepFile(ctx, ns, "data")
		lun := lunOf(ctx, ns, "data")
		clean(ctx, lun)
		targets := field(ctx, "pod", targetPod("a"), namespace, "{.metadata.uid}")

		DeferCleanup(func(ctx context.Context) { install(ctx) }, NodeTimeout(8*time.Minute)) // also if something below fails
		_, err := run(ctx, "", "helm", "uninstall", "gemel", "-n", namespace, "--wait", "--timeout", "3m")
		Expect(err).NotTo(HaveOccurred())

		By("checking what is kept")
		for _, o := range []string{"storagecluster/" + cluster, "targetpair/" + pair, "logicalunit/" + lun, "crd/logicalunits.gemel.storage", "crd/hosts.gemel.storage"} {
			Expect(kubectl(ctx, "get", o, "-o", "name")).NotTo(BeEmpty())
		}
		kept := kubectl(ctx, "get", "statefulset,service,secret,configmap,lease,pvc,serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget", "-n", namespace,
			"-o", `jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.labels.gemel\.storage/pair}{.metadata.labels.gemel\.storage/cluster}{"\n"}{end}`)
		for line := range strings.Lines(kept) {
			f := strings.Fields(line)
			switch {
			case len(f) == 2: // of a pair or a cluster
			case f[0] == "ServiceAccount/default", f[0] == "ConfigMap/kube-root-ca.crt", strings.HasPrefix(f[0], "Secret/gemel-main-"): // Kubernetes' own, and the cluster's certificates
			default:
				// Leases of leader elections belong to no object; they are small and harmless.
				Expect(f[0]).To(HavePrefix("Lease/"), "it is not said to be kept")
			}
		}
		Expect(field(ctx, "pod", targetPod("a"), namespace, "{.metadata.uid}")).To(Equal(targets), "targets run on")

		By("checking what is removed")
		for _, kind := range []string{"deployment", "daemonset"} {
			Expect(kubectl(ctx, "get", kind, "-n", namespace, "-o", "name")).To(BeEmpty())
		}
		for _, kind := range []string{"clusterrole", "clusterrolebinding", "csidriver", "storageclass", "validatingadmissionpolicy", "validatingadmissionpolicybinding", "flowschema"} {
			for _, name := range strings.Fields(kubectl(ctx, "get", kind, "-o", "jsonpath={.items[*].metadata.name}")) {
				if name == "gemel-backing" { // of kind-up, for backing volumes
					continue
				}
				Expect(name).NotTo(ContainSubstring("gemel"), kind)
			}
		}
		for _, w := range workers(ctx) {
			// Sockets and mounts go with the pods; the folder of the worker's own iSCSI name stays,
			// so that it is the same host again.
			Eventually(func() string {
				return on(ctx, w, "ls /var/lib/kubelet/plugins_registry | grep gemel; grep csi.gemel.storage /proc/mounts; losetup -a | grep "+lun+"; find /var/lib/kubelet/plugins/csi.gemel.storage -type s 2>/dev/null; "+
					"ls /etc/multipath/conf.d/gemel.conf /etc/iscsi/ifaces/gemel /var/lib/iscsi/ifaces/gemel 2>/dev/null; true") // only attaching with the kernel has these
			}).WithContext(ctx).Should(BeEmpty(), "on "+w)
		}

		By("installing again")
		install(ctx)
		Eventually(func() string { return condition(ctx, "logicalunit", lun, "", "Ready") }).WithContext(ctx).Should(Equal("True"))
		fileKept(ctx, ns, "data")
		Expect(field(ctx, "pod", targetPod("a"), namespace, "{.metadata.uid}")).To(Equal(targets), "targets run on")
	}, NodeTimeout(14*time.Minute))
})
