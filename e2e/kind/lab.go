package kind

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// controlPlane is the node with API server and etcd.
const controlPlane = "gemel-control-plane"

// targetPod of a node of the pair.
func targetPod(node string) string { return "gemel-" + pair + "-" + node + "-0" }

// on runs a command on a kind node, which has to succeed.
func on(ctx context.Context, node, command string) string {
	GinkgoHelper()
	out, err := run(ctx, "", "docker", "exec", node, "sh", "-c", command)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// targetWorker is where a node of the pair runs.
func targetWorker(ctx context.Context, node string) string {
	GinkgoHelper()
	w := field(ctx, "pod", targetPod(node), namespace, "{.spec.nodeName}")
	Expect(w).NotTo(BeEmpty())
	return w
}

// otherNode is the other one of the pair.
func otherNode(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}

// bystander is a worker without a target.
func bystander(ctx context.Context) string {
	GinkgoHelper()
	a, b := targetWorker(ctx, "a"), targetWorker(ctx, "b")
	for _, w := range workers(ctx) {
		if w != a && w != b {
			return w
		}
	}
	Fail("every worker has a target")
	return ""
}

// targetProcess is a pattern for pgrep and pkill. The brackets keep it from matching the command
// line of a shell that it is in.
func targetProcess(node string) string {
	return fmt.Sprintf("'[g]emel-target --cluster=%s --pair=%s --node=%s'", cluster, pair, node)
}

// crashTarget kills the process of a target node; its supervisor, which was started before it,
// starts it again.
func crashTarget(ctx context.Context, worker, node string) {
	GinkgoHelper()
	on(ctx, worker, "pkill -KILL --newest -f "+targetProcess(node))
}

// killTarget kills the processes of a target node; its pod stays and starts them again.
func killTarget(ctx context.Context, worker, node string) {
	GinkgoHelper()
	on(ctx, worker, "pkill -KILL -f "+targetProcess(node))
}

// killer reads the metrics of a target node until it holds members of a group snapshot, for two
// minutes at most, and then kills the processes whose ids it is given. Milliseconds count, so it is
// one process, and begins none.
const killer = `use IO::Socket::INET;
$| = 1;
my ($end, $said) = (time + 120, 0);
while (time < $end) {
  my $s = IO::Socket::INET->new("%s:9260") or next;
  print $s "GET /metrics HTTP/1.0\r\n\r\n";
  while (<$s>) {
    if (/^gemel_group_holds [1-9]/) { kill 9, @ARGV; print "killed\n"; exit 0 }
    last if /^gemel_group_holds /;
  }
  print "reads\n" unless $said++;
  select(undef, undef, undef, 0.002);
}
print "saw no hold in $said looks\n";
`

// killWhenHeld kills processes on workers as soon as a target node holds members of a group
// snapshot. It returns when it reads the metrics; what it returns waits until the processes are
// killed on all of the workers.
func killWhenHeld(ctx context.Context, node, process string, workers ...string) (wait func()) {
	GinkgoHelper()
	address := field(ctx, "pod", targetPod(node), namespace, "{.status.podIP}")
	Expect(address).NotTo(BeEmpty())
	said := func(w string) func() string { return func() string { return on(ctx, w, "cat /run/killer") } }
	for _, w := range workers {
		on(ctx, w, fmt.Sprintf("p=$(pgrep -f %s) && (exec nice -n -20 perl -e '%s' $p >/run/killer 2>&1 &)", process, fmt.Sprintf(killer, address)))
		Eventually(said(w)).WithContext(ctx).Should(ContainSubstring("reads"))
	}
	return func() {
		GinkgoHelper()
		for _, w := range workers {
			Eventually(said(w)).WithContext(ctx).WithTimeout(2*time.Minute + 10*time.Second).Should(Or(ContainSubstring("killed"), ContainSubstring("saw no hold")))
			Expect(said(w)()).To(ContainSubstring("killed"), "on "+w)
		}
	}
}

// slowTarget stops the process of a target node for 150 of 156 ms, for a minute at most or until
// the test ends or what it returns is called. The process is looked up once: a search of all
// processes takes longer than it is to run.
func slowTarget(ctx context.Context, worker, node string) (restore func(ctx context.Context)) {
	GinkgoHelper()
	restore = func(ctx context.Context) { on(ctx, worker, "rm -f /run/slow; pkill -CONT -f "+targetProcess(node)) }
	on(ctx, worker, fmt.Sprintf("touch /run/slow; (p=$(pgrep -f %s); for i in $(seq 400); do test -e /run/slow || break; kill -STOP $p; sleep 0.15; kill -CONT $p; sleep 0.006; done; kill -CONT $p) >/dev/null 2>&1 &",
		targetProcess(node)))
	DeferCleanup(restore, NodeTimeout(time.Minute))
	return restore
}

// stopControlPlane takes static pods away, whose processes are then gone; the kubelet starts them
// again when startControlPlane puts them back.
func stopControlPlane(ctx context.Context, components ...string) {
	GinkgoHelper()
	for _, c := range components {
		on(ctx, controlPlane, fmt.Sprintf("mkdir -p /root/stopped && mv /etc/kubernetes/manifests/%s.yaml /root/stopped/", c))
		DeferCleanup(func(ctx context.Context) { startControlPlane(ctx, c) }, NodeTimeout(3*time.Minute))
	}
	for _, c := range components {
		endComponent(ctx, c)
		Eventually(func() string { return on(ctx, controlPlane, "pgrep -x "+comm(c)+" || true") }).WithContext(ctx).Should(BeEmpty())
	}
}

func startControlPlane(ctx context.Context, components ...string) {
	GinkgoHelper()
	for _, c := range components {
		on(ctx, controlPlane, fmt.Sprintf("if [ -e /root/stopped/%[1]s.yaml ]; then mv /root/stopped/%[1]s.yaml /etc/kubernetes/manifests/; fi", c))
	}
	Eventually(func() error {
		_, err := run(ctx, "", "kubectl", "get", "--raw=/readyz", "--request-timeout=5s")
		return err
	}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Succeed())
}

// deleteComponents takes the pods of operator, driver and node plugin away; they come back by
// themselves.
func deleteComponents(ctx context.Context, how ...string) {
	GinkgoHelper()
	for _, c := range []string{"operator", "csi-controller", "csi-node"} {
		kubectl(ctx, append([]string{"delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/component=" + c}, how...)...)
	}
}

// endComponent ends a process of the control plane; the kubelet starts it again.
func endComponent(ctx context.Context, name string) {
	GinkgoHelper()
	on(ctx, controlPlane, fmt.Sprintf("pkill -KILL -x %s || true", comm(name)))
}

// comm is a process's name as the kernel keeps it: 15 bytes.
func comm(name string) string { return name[:min(15, len(name))] }

// restartWatchers restarts every process that watches the API server: after a restore of etcd, a
// watch continues from a version that no longer exists, and gets no events. An administrator has to
// do the same after such a restore, with any storage.
func restartWatchers(ctx context.Context) {
	GinkgoHelper()
	for _, node := range append(workers(ctx), controlPlane) {
		on(ctx, node, "systemctl restart kubelet; pkill -KILL -x kube-proxy; pkill -KILL -x kindnet; true")
	}
	for _, c := range []string{"kube-controller-manager", "kube-scheduler"} {
		endComponent(ctx, c)
	}
	kubectl(ctx, "delete", "pod", "-n", "kube-system", "-l", "k8s-app=kube-dns", "--wait=false")
	deleteComponents(ctx, "--wait=false")
	Eventually(func() string {
		out, _ := run(ctx, "", "kubectl", "get", "deployment", "-n", namespace, "-o", "jsonpath={.items[*].status.unavailableReplicas}")
		return out
	}).WithContext(ctx).WithTimeout(4 * time.Minute).Should(BeEmpty())
}

// orphans are LUNs on the disks without an object.
func orphans(ctx context.Context) string {
	return field(ctx, "targetpair", pair, "", "{.status.orphans}")
}

// leftovers are what a volume leaves on a worker when it has been detached: nothing. The kubelet
// names folders of volumes with filesystems by a hash of the handle, ours are named by the handle
// itself. All workers of the machine see its loop devices, so a loop device cannot be assigned to a
// worker: see clean.
func leftovers(ctx context.Context, worker, lun string) string {
	GinkgoHelper()
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(lun)))
	return on(ctx, worker, fmt.Sprintf("grep -e %[1]s -e %[2]s /proc/mounts; pgrep -af %[1]s | grep -v 'sh -c'; ls /var/lib/gemel/attach /var/lib/gemel/staged | grep %[1]s; true", lun, hash))
}

// clean waits until every worker is rid of a volume.
func clean(ctx context.Context, lun string) {
	GinkgoHelper()
	for _, w := range workers(ctx) {
		Eventually(func() string { return strings.TrimSpace(leftovers(ctx, w, lun)) }).WithContext(ctx).Should(BeEmpty(), "on "+w)
	}
	Eventually(func() string { return on(ctx, workers(ctx)[0], "losetup -a | grep "+lun+" || true") }).WithContext(ctx).Should(BeEmpty())
}

// topRow has the fields of a LUN's row of kubectl gemel top; 11 empty ones if it has none.
func topRow(ctx context.Context, lun string) []string {
	GinkgoHelper()
	out, _ := run(ctx, "", "kubectl", "gemel", "top", "--limit", "0", "--pair", pair) // polled
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 11 && f[0] == lun {
			return f
		}
	}
	return make([]string, 11)
}
