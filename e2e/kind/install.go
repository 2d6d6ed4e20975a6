package kind

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const (
	namespace = "gemel-system"
	cluster   = "main"
	pair      = "main-p0"
	toolsPod  = "gemel.test/tools:dev"
)

// workers of the cluster.
func workers(ctx context.Context) []string {
	GinkgoHelper()
	return strings.Fields(kubectl(ctx, "get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", "jsonpath={.items[*].metadata.name}"))
}

// backing makes local volumes of the class gemel-backing on every worker: folders of the XFS that each kind node has.
func backing(ctx context.Context) {
	GinkgoHelper()
	var b strings.Builder
	b.WriteString(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: gemel-backing}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Retain
`)
	for _, w := range workers(ctx) {
		for i := range 2 {
			_, err := run(ctx, "", "docker", "exec", w, "mkdir", "-p", fmt.Sprintf("/var/lib/gemel-backing/v%d", i))
			Expect(err).NotTo(HaveOccurred())
			fmt.Fprintf(&b, `---
apiVersion: v1
kind: PersistentVolume
metadata: {name: backing-%[1]s-%[2]d}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: gemel-backing
  local: {path: /var/lib/gemel-backing/v%[2]d}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: kubernetes.io/hostname, operator: In, values: [%[1]s]}
`, w, i)
		}
	}
	_, err := run(ctx, b.String(), "kubectl", "apply", "-f", "-")
	Expect(err).NotTo(HaveOccurred())
}

// install puts Gemel on the cluster by its chart, with one pair. On a cluster that has it, it is an upgrade.
func install(ctx context.Context) {
	GinkgoHelper()
	Expect(os.Getenv("KUBECONFIG")).NotTo(BeEmpty(), "run this by `make e2e`")
	backing(ctx)
	start := time.Now()
	image := os.Getenv("GEMEL_IMAGE")
	if image == "" {
		image = "gemel.test/gemel:dev"
	}
	repository, tag, _ := strings.Cut(image, ":")
	args := []string{"upgrade", "--install", "gemel", "charts/gemel", "-n", namespace, "--create-namespace", "--wait", "--timeout", "4m",
		"--set", "image.repository=" + repository, "--set", "image.tag=" + tag, "--set", "node.attach=userspace",
		"--set", "node.maxVolumes=32", // the three workers share the machine's loop devices, of which they see 128
		"--set", "storageClass.create=true", "--set", "storageClass.cluster=" + cluster}
	for value, name := range map[string]string{"provisioner": "csi-provisioner", "attacher": "csi-attacher", "resizer": "csi-resizer", "snapshotter": "csi-snapshotter"} {
		args = append(args, "--set", "sidecars."+value+"=gemel.test/"+name+":dev")
	}
	// What a run that was killed left half done stands in the way of every later one.
	if out, err := run(ctx, "", "helm", "status", "gemel", "-n", namespace); err == nil && strings.Contains(out, "STATUS: pending") {
		_, err := run(ctx, "", "helm", "uninstall", "gemel", "-n", namespace, "--wait")
		Expect(err).NotTo(HaveOccurred())
	}
	_, err := run(ctx, "", "helm", args...)
	Expect(err).NotTo(HaveOccurred())
	_, err = run(ctx, "", "kubectl", "apply", "-f", "config/samples/storagecluster.yaml")
	Expect(err).NotTo(HaveOccurred())
	inSync(ctx)
	GinkgoWriter.Printf("installed and in sync after %v\n", time.Since(start).Round(time.Second))
}

// inSync waits until both nodes of the pair hold every write.
func inSync(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() string { return condition(ctx, "targetpair", pair, "", "InSync") }).WithContext(ctx).
		WithTimeout(4*time.Minute).Should(Equal("True"), func() string {
		return kubectl(context.Background(), "get", "targetpair", pair, "-o", "yaml")
	})
}
