package kind

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/release"
)

// upgradeLabel selects the spec that replaces the installation that the other specs share: it runs
// alone.
const upgradeLabel = "upgrade"

// alone tells that this run is about that spec and nothing else.
func alone() bool { return GinkgoLabelFilter() == upgradeLabel }

const chartTime = "6m" // for helm to wait

// helm runs helm on Gemel's release, which has to succeed.
func helm(ctx context.Context, args ...string) {
	GinkgoHelper()
	out, err := run(ctx, "", "helm", append(args, "-n", namespace, "--wait", "--timeout", chartTime)...)
	Expect(err).NotTo(HaveOccurred())
	GinkgoWriter.Println(out)
}

// takeAway removes Gemel with everything that it holds, so that the cluster is as kind-up made it.
// It refuses where there are volumes.
func takeAway(ctx context.Context) {
	GinkgoHelper()
	if _, err := run(ctx, "", "kubectl", "get", "storagecluster,logicalunit", "-o", "name"); err == nil { // else there are no such kinds
		Eventually(func() string { return kubectl(ctx, "get", "logicalunit", "-o", "name") }).WithContext(ctx).
			Should(BeEmpty(), "the cluster has volumes, and an upgrade begins with none: delete their claims, or make kind-down")
		deleteCluster(ctx, 4*time.Minute, "--all")
	}
	if _, err := run(ctx, "", "helm", "status", "gemel", "-n", namespace); err == nil {
		helm(ctx, "uninstall", "gemel")
	}
	kubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found", "--wait=true", "--timeout=240s")
	// Backing volumes outlive their claims. The next pair begins with empty ones.
	for line := range strings.Lines(kubectl(ctx, "get", "pv", "-o",
		`jsonpath={range .items[?(@.spec.storageClassName=="gemel-backing")]}{.metadata.name} {.status.phase} {.spec.local.path} {.spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]}{"\n"}{end}`)) {
		f := strings.Fields(line)
		Expect(f).To(HaveLen(4), line)
		if f[1] == "Available" {
			continue
		}
		on(ctx, f[3], "find "+f[2]+" -mindepth 1 -delete")
		kubectl(ctx, "patch", "pv", f[0], "--type=merge", "-p", `{"spec":{"claimRef":null}}`)
	}
}

// settled waits until everything runs one image, node plugins say its version, and both nodes of
// the pair are in sync.
func settled(ctx context.Context, image, version string) {
	GinkgoHelper()
	for _, o := range [][2]string{{"deployment", "gemel-operator"}, {"deployment", "gemel-csi-controller"}, {"daemonset", "gemel-csi-node"}} {
		Eventually(func() error { // the API server is busy too
			_, err := run(ctx, "", "kubectl", "rollout", "status", "-n", namespace, o[0]+"/"+o[1], "--timeout=30s")
			return err
		}).WithContext(ctx).WithTimeout(8*time.Minute).Should(Succeed(), o[1])
		Eventually(func() string { return field(ctx, o[0], o[1], namespace, "{.spec.template.spec.containers[*].image}") }).
			WithContext(ctx).Should(ContainSubstring(image), o[1])
	}
	for _, w := range workers(ctx) {
		Eventually(func() string { return field(ctx, "host", w, "", "{.status.version}") }).WithContext(ctx).Should(Equal(version), "the node plugin of "+w)
	}
	state := func() string {
		var s []string
		for _, n := range []string{"a", "b"} {
			s = append(s, field(ctx, "pod", targetPod(n), namespace, `{.spec.containers[0].image} ready={.status.conditions[?(@.type=="Ready")].status}`))
		}
		return strings.Join(append(s, condition(ctx, "targetpair", pair, "", "InSync"), condition(ctx, "storagecluster", cluster, "", "UpToDate")), " ")
	}
	Eventually(state).WithContext(ctx).WithTimeout(8 * time.Minute).Should(Equal(fmt.Sprintf("%[1]s ready=True %[1]s ready=True True True", image)))
	for _, n := range []string{"a", "b"} {
		Eventually(func() (string, error) {
			return run(ctx, "", "kubectl", "exec", "-n", namespace, targetPod(n), "--", "gemel-target", "--version")
		}).WithContext(ctx).Should(HaveSuffix(" "+version), "node "+n)
	}
}

// underLoad has a pod write while everything is replaced, and until both nodes are in sync again.
func underLoad(ctx context.Context, dir, ns, name string, replace func()) (r rollout) {
	GinkgoHelper()
	p := startProbe(ctx, dir, ns, "load", name)
	begun := time.Now()
	replace()
	r.Seconds = time.Since(begun).Seconds()
	m := p.finish(ctx)
	r.Operations, r.Longest = m.Operations, m.LongestMS
	GinkgoWriter.Printf("%s: %.0f s, %d operations, the longest %.0f ms\n", name, r.Seconds, r.Operations, r.Longest)
	Expect(m.Operations).To(BeNumerically(">=", 1000))
	return r
}

// usable has a new volume made and used, and one from before read on another worker.
func usable(ctx context.Context, ns, claimName, kept string) {
	GinkgoHelper()
	claim(ctx, ns, claimName, "64Mi", "Block", "")
	pod(ctx, ns, claimName, claimName, "", "echo kept | dd of=/dev/data bs=512 count=1 conv=sync,fsync && sleep infinity", true)
	running(ctx, ns, claimName)
	deletePod(ctx, ns, claimName)
	fileKept(ctx, ns, kept)
	deletePod(ctx, ns, "reader")
}

var _ = Describe("the release before", Serial, Label(upgradeLabel), func() {
	It("is upgraded to this tree under load, and this tree goes back to it", func(ctx context.Context) {
		if !alone() {
			Skip("it replaces the installation that the other specs share: make e2e LABELS=" + upgradeLabel)
		}
		r, err := release.Latest()
		Expect(err).NotTo(HaveOccurred())
		s, err := release.Default(root, GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		tree, err := s.Make(ctx, r)
		Expect(err).NotTo(HaveOccurred())
		dir := GinkgoT().TempDir()
		const repository, version = "gemel.test/gemel", "dev"
		oldImage, newImage := repository+":"+r.Name, repository+":"+version

		By("release " + r.Name)
		takeAway(ctx)
		DeferCleanup(func(ctx context.Context) {
			if !CurrentSpecReport().Failed() { // else what may tell why is kept
				takeAway(ctx)
			}
		}, NodeTimeout(12*time.Minute))
		helm(ctx, "install", "gemel", filepath.Join(tree.Source, "charts/gemel"), "--create-namespace",
			"-f", filepath.Join(tree.Source, "hack/kind/values.yaml"), "--set", "image.tag="+r.Name)
		kubectl(ctx, "apply", "-f", filepath.Join(tree.Source, "config/samples/storagecluster.yaml"))
		kubectl(ctx, "wait", "--for=condition=Ready", "storagecluster/"+cluster, "--timeout=5m")
		settled(ctx, oldImage, r.Name)

		ns := newNamespace(ctx)
		claim(ctx, ns, "kept", "320Mi", "Filesystem", "")
		keepFile(ctx, ns, "kept")
		claim(ctx, ns, "data", "320Mi", "Filesystem", "")
		pod(ctx, ns, "load", "data", "", "sleep infinity", false)
		running(ctx, ns, "load")
		found := &upgrade{From: r.Name, FromCommit: r.Commit, To: "this tree"}
		results.Upgrade = found

		By("to this tree")
		found.Up = underLoad(ctx, dir, ns, "up", func() {
			helm(ctx, "upgrade", "gemel", "charts/gemel", "-f", "hack/kind/values.yaml")
			settled(ctx, newImage, version)
		})
		_, err = run(ctx, "", "kubectl", "diff", "-f", "charts/gemel/files/crds")
		Expect(err).NotTo(HaveOccurred(), "the CRDs are not those of this tree")
		usable(ctx, ns, "after", "kept")

		By("back to release " + r.Name)
		found.Back = underLoad(ctx, dir, ns, "back", func() {
			helm(ctx, "rollback", "gemel", "1")
			settled(ctx, oldImage, r.Name)
		})
		usable(ctx, ns, "again", "kept")
	}, NodeTimeout(40*time.Minute))
})
