package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// claim makes a PVC. source is empty, or "VolumeSnapshot/NAME" or "PersistentVolumeClaim/NAME".
func claim(ctx context.Context, ns, name, size, mode, source string) {
	GinkgoHelper()
	claimOf(ctx, ns, name, "gemel", size, mode, source)
}

// snapshot makes a VolumeSnapshot of a claim, and waits until it can be used.
func snapshot(ctx context.Context, ns, name, claim string) {
	GinkgoHelper()
	apply(ctx, ns, fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec:
  volumeSnapshotClassName: gemel
  source: {persistentVolumeClaimName: %s}
`, name, claim))
	Eventually(func() string { return field(ctx, "volumesnapshot", name, ns, "{.status.readyToUse}") }).WithContext(ctx).Should(Equal("true"))
}

// claimOf is claim with another class.
func claimOf(ctx context.Context, ns, name, class, size, mode, source string) {
	GinkgoHelper()
	claimAs(ctx, ns, name, class, "ReadWriteOnce", size, mode, source)
}

// claimAs is claimOf with another access mode.
func claimAs(ctx context.Context, ns, name, class, access, size, mode, source string) {
	GinkgoHelper()
	from := ""
	if kind, object, ok := strings.Cut(source, "/"); ok {
		group := ""
		if kind == "VolumeSnapshot" {
			group = "apiGroup: snapshot.storage.k8s.io, "
		}
		from = fmt.Sprintf("dataSource: {%skind: %s, name: %s}", group, kind, object)
	}
	apply(ctx, ns, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [%s]
  volumeMode: %s
  storageClassName: %s
  resources: {requests: {storage: %s}}
  %s
`, name, access, mode, class, size, from))
}

// pod runs a shell command with a claim at /data, or as /dev/data if it is a block volume. worker
// may be empty.
func pod(ctx context.Context, ns, name, claim, worker, command string, block bool) {
	GinkgoHelper()
	mount := "volumeMounts: [{name: data, mountPath: /data}]"
	if block {
		mount = "volumeDevices: [{name: data, devicePath: /dev/data}]"
	}
	selector := ""
	if worker != "" {
		selector = fmt.Sprintf("nodeSelector: {kubernetes.io/hostname: %s}", worker)
	}
	cmd, err := json.Marshal([]string{"bash", "-c", command})
	Expect(err).NotTo(HaveOccurred())
	apply(ctx, ns, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  %s
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: %s
    %s
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: %s}
`, name, selector, toolsPod, cmd, mount, claim))
}

func phase(ctx context.Context, ns, name string) string {
	return field(ctx, "pod", name, ns, "{.status.phase}")
}

// running waits for a pod.
func running(ctx context.Context, ns, name string) {
	GinkgoHelper()
	Eventually(func() string { return phase(ctx, ns, name) }).WithContext(ctx).WithTimeout(3*time.Minute).Should(Equal("Running"), func() string {
		return kubectl(context.Background(), "describe", "pod", "-n", ns, name)
	})
}

// inPod runs a command in a pod.
func inPod(ctx context.Context, ns, name, command string) string {
	GinkgoHelper()
	return kubectl(ctx, "exec", "-n", ns, name, "--", "bash", "-c", command)
}

func deletePod(ctx context.Context, ns, name string) {
	GinkgoHelper()
	kubectl(ctx, "delete", "pod", "-n", ns, name, "--wait=true", "--timeout=120s")
}

// lunOf names the LogicalUnit of a claim.
func lunOf(ctx context.Context, ns, claim string) string {
	GinkgoHelper()
	var name string
	Eventually(func() string {
		name = kubectl(ctx, "get", "logicalunit", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.volume.pvc=="%s")].metadata.name}`, claim))
		return name
	}).WithContext(ctx).ShouldNot(BeEmpty())
	for _, n := range strings.Fields(name) {
		if field(ctx, "logicalunit", n, "", "{.spec.volume.namespace}{.spec.leg.of}") == ns { // a leg is none
			return n
		}
	}
	Fail("no LogicalUnit of claim " + ns + "/" + claim)
	return ""
}

// ownerOf is the node that the pair itself names, not the status, which is updated later.
func ownerOf(ctx context.Context, ns, claim string) string {
	GinkgoHelper()
	lun := lunOf(ctx, ns, claim)
	var owner string
	Eventually(func() string {
		owner = field(ctx, "logicalunit", lun, "", "{.status.owner}")
		return owner
	}).WithContext(ctx).Should(Or(Equal("a"), Equal("b")))
	return owner
}

// loadResult is what fio says at its end.
type loadResult struct {
	Jobs []struct {
		Error int    `json:"error"`
		Read  fioDir `json:"read"`
		Write fioDir `json:"write"`
	} `json:"jobs"`
}

type fioDir struct {
	IOs  uint64 `json:"total_ios"`
	Clat struct {
		Max float64 `json:"max"`
	} `json:"clat_ns"`
}

// load is a pod that writes and verifies with O_DIRECT and a queue for some seconds; finish judges
// it.
func load(ctx context.Context, ns, name, claim, worker string, seconds int) {
	GinkgoHelper()
	pod(ctx, ns, name, claim, worker, fmt.Sprintf(`cd /data && fio --name=load --filename=/data/%s --size=48m --direct=1 --ioengine=libaio --iodepth=4 \
 --rw=randwrite --bs=4k --rate_iops=150 --time_based --runtime=%d --verify=crc32c --verify_backlog=128 --verify_fatal=1 --randrepeat=0 \
 --do_verify=1 --output-format=json`, name, seconds), false)
	running(ctx, ns, name)
	// The file is laid out first; what happens before that is no operation.
	Eventually(func() string { return inPod(ctx, ns, name, "stat -c %s /data/"+name+" 2>/dev/null || echo 0") }).WithContext(ctx).Should(Equal("50331648"))
}

// volume is what a spec of load begins with: a pair in sync, a namespace with a claim "data", and a
// pair that is in sync again afterwards. Called in a BeforeEach, what it cleans up runs after the
// cleanups of the spec, which bring workers back.
func volume(ctx context.Context) (ns string) {
	GinkgoHelper()
	inSync(ctx)
	ns = newNamespace(ctx)
	claim(ctx, ns, "data", "320Mi", "Filesystem", "")
	DeferCleanup(func(ctx context.Context) { inSync(ctx) }, NodeTimeout(6*time.Minute))
	return ns
}

// keepFile has a pod write a file with the content "kept" to a claim, and takes the pod away again.
func keepFile(ctx context.Context, ns, claim string) {
	GinkgoHelper()
	pod(ctx, ns, "writer", claim, "", "echo kept > /data/file && sync && sleep infinity", false)
	running(ctx, ns, "writer")
	Eventually(func() string { return inPod(ctx, ns, "writer", "cat /data/file 2>/dev/null || true") }).WithContext(ctx).Should(Equal("kept"))
	deletePod(ctx, ns, "writer")
}

// fileKept reads it in another pod.
func fileKept(ctx context.Context, ns, claim string) {
	GinkgoHelper()
	pod(ctx, ns, "reader", claim, "", "sleep infinity", false)
	running(ctx, ns, "reader")
	Expect(inPod(ctx, ns, "reader", "cat /data/file")).To(Equal("kept"))
}

// finish waits for a load's end: no command failed, nothing was lost, enough was done. It gives the
// longest operation.
func finish(ctx context.Context, ns, name string, atLeast uint64) (pauseMS float64) {
	GinkgoHelper()
	Eventually(func() string { return phase(ctx, ns, name) }).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Or(Equal("Succeeded"), Equal("Failed")))
	out := kubectl(ctx, "logs", "-n", ns, name)
	var r loadResult
	i := strings.Index(out, "{\n")
	if i < 0 || json.Unmarshal([]byte(out[i:]), &r) != nil || len(r.Jobs) != 1 {
		results.PodIOErrors++
		Fail("the load said nothing that can be read:\n" + out)
	}
	j := &r.Jobs[0]
	const badMessage = 84 // EILSEQ: fio found a block with another checksum
	switch j.Error {
	case 0:
	case badMessage:
		results.LostWrites++
	default:
		results.PodIOErrors++
	}
	Expect(j.Error).To(BeZero(), out)
	Expect(phase(ctx, ns, name)).To(Equal("Succeeded"), out)
	Expect(j.Write.IOs).To(BeNumerically(">=", atLeast), out)
	results.Operations += j.Write.IOs + j.Read.IOs
	return max(j.Write.Clat.Max, j.Read.Clat.Max) / 1e6
}
