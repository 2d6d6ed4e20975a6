package kind

import (
	"context"
	"os"
	"path/filepath"
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

// readme is the commands by which the README puts Gemel on the cluster of kind-up, and a pod on a
// volume.
func readme() (commands []string) {
	GinkgoHelper()
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	Expect(err).NotTo(HaveOccurred())
	_, s, ok := strings.Cut(string(b), "\n## On Kubernetes\n")
	Expect(ok).To(BeTrue(), "README.md: the section On Kubernetes")
	_, s, _ = strings.Cut(s, "```\n")
	s, _, _ = strings.Cut(s, "```")
	for line := range strings.Lines(s) {
		commands = append(commands, strings.TrimSpace(line))
	}
	Expect(len(commands)).To(BeNumerically(">=", 5), "README.md: %q", commands)
	return commands
}

// install puts Gemel on the cluster, with one pair, by the commands of the README. On a cluster
// that has it, it is an upgrade.
func install(ctx context.Context) {
	GinkgoHelper()
	start := time.Now()
	// A release that a killed run left pending blocks every later run.
	if out, err := run(ctx, "", "helm", "status", "gemel", "-n", namespace); err == nil && strings.Contains(out, "STATUS: pending") {
		_, err := run(ctx, "", "helm", "uninstall", "gemel", "-n", namespace, "--wait")
		Expect(err).NotTo(HaveOccurred())
	}
	for _, c := range readme() {
		if strings.Contains(c, "pvc-and-pod") { // the rest is a spec
			break
		}
		_, err := run(ctx, "", "bash", "-ec", c)
		Expect(err).NotTo(HaveOccurred())
	}
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
