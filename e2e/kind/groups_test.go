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

// Records of 4 KiB are written to the first recordMiB of each device, and other writes go behind
// them.
const (
	recordMiB  = 192
	maxRecords = recordMiB << 20 / 4096
)

// orderWriter writes record k on one of three devices, chosen at random, at block k, after record
// k-1 was acknowledged, most often on another device. Anything that holds record k and not record
// k-1 has never been the state of the three. dsync: acknowledged by the targets, not by a cache of
// the worker. Each device has other writes too, so that commands are at work when they are held.
// The pause makes the blocks last for several snapshots.
const orderWriter = `for i in 0 1 2; do
  fio --name=load --filename=/dev/data$i --offset=%[1]dm --size=48m --direct=1 --ioengine=libaio --iodepth=4 --rw=randwrite --bs=4k \
    --rate_iops=100 --time_based --runtime=3600 --output=/tmp/fio$i &
done
for ((k = 1; k < %[2]d; k++)); do
  echo $k | dd of=/dev/data$((RANDOM %% 3)) bs=4096 seek=$k conv=notrunc,sync oflag=direct,dsync status=none || exit 1
  echo $k >/tmp/acked.new && mv /tmp/acked.new /tmp/acked && sleep 0.01
done
wait`

// readRecords prints how many records there are if they are a prefix, and else what is wrong.
const readRecords = `for i in 0 1 2; do dd if=/dev/data$i iflag=direct bs=1M count=%d status=none; done | tr -d '\0' | sort -n >/tmp/got
n=$(wc -l </tmp/got); seq 1 $n | diff - /tmp/got | head -n 5 >/tmp/wrong; if [ -s /tmp/wrong ]; then cat /tmp/wrong; else echo $n; fi`

// devicesPod runs a shell command with three block claims, as /dev/data0 to /dev/data2.
func devicesPod(ctx context.Context, ns, name, command string, claims [3]string) {
	GinkgoHelper()
	devices, volumes := "", ""
	for i, c := range claims {
		devices += fmt.Sprintf("    - {name: data%[1]d, devicePath: /dev/data%[1]d}\n", i)
		volumes += fmt.Sprintf("  - {name: data%d, persistentVolumeClaim: {claimName: %s}}\n", i, c)
	}
	apply(ctx, ns, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: [bash, -c, %s]
    volumeDevices:
%s  volumes:
%s`, name, toolsPod, strconv.Quote(command), devices, volumes))
	running(ctx, ns, name)
}

// acknowledged is the last record that the writer knows to be written.
func acknowledged(ctx context.Context, ns string) int {
	GinkgoHelper()
	n, err := strconv.Atoi(inPod(ctx, ns, "writer", "cat /tmp/acked 2>/dev/null || echo 0"))
	Expect(err).NotTo(HaveOccurred())
	return n
}

// askGroupSnapshot makes a VolumeGroupSnapshot of the claims with the label ordered=yes.
func askGroupSnapshot(ctx context.Context, ns, name string) {
	GinkgoHelper()
	apply(ctx, ns, fmt.Sprintf(`apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: %s}
spec:
  volumeGroupSnapshotClassName: gemel
  source: {selector: {matchLabels: {ordered: "yes"}}}
`, name))
}

// awaitGroupSnapshot waits until a VolumeGroupSnapshot can be used, and gives the driver's name for
// it.
func awaitGroupSnapshot(ctx context.Context, ns, name string) (handle string) {
	GinkgoHelper()
	Eventually(func() string { return field(ctx, "volumegroupsnapshot", name, ns, "{.status.readyToUse}") }).WithContext(ctx).WithTimeout(4*time.Minute).Should(Equal("true"), func() string {
		return kubectl(context.Background(), "get", "volumegroupsnapshot,volumegroupsnapshotcontent,logicalunitgroupsnapshot,logicalunitsnapshot", "-n", ns, "-o", "yaml")
	})
	content := field(ctx, "volumegroupsnapshot", name, ns, "{.status.boundVolumeGroupSnapshotContentName}")
	handle = field(ctx, "volumegroupsnapshotcontent", content, "", "{.status.volumeGroupSnapshotHandle}")
	Expect(condition(ctx, "logicalunitgroupsnapshot", handle, "", "Ready")).To(Equal("True"))
	return handle
}

// membersLeft names the LogicalUnitSnapshots of a group.
func membersLeft(ctx context.Context, handle string) string {
	return kubectl(ctx, "get", "logicalunitsnapshot", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.group=="%s")].metadata.name}`, handle))
}

// orderedClaims makes three block claims, whose LUNs have both owners, and a pod that writes to
// them in an order across all three.
func orderedClaims(ctx context.Context, ns string) {
	GinkgoHelper()
	claims := [3]string{"one", "two", "three"}
	for _, c := range claims {
		claim(ctx, ns, c, "256Mi", "Block", "")
		kubectl(ctx, "label", "pvc", c, "-n", ns, "ordered=yes")
	}
	devicesPod(ctx, ns, "writer", fmt.Sprintf(orderWriter, recordMiB, maxRecords), claims)
	kubectl(ctx, "gemel", "transfer", lunOf(ctx, ns, "one"), "--to", "a", "--hold", "1h")
	kubectl(ctx, "gemel", "transfer", lunOf(ctx, ns, "two"), "--to", "b", "--hold", "1h")
}

// moreWritten waits until the writer has gone on, and gives its last record.
func moreWritten(ctx context.Context, ns string) int {
	GinkgoHelper()
	earlier := acknowledged(ctx, ns)
	Eventually(func() int { return acknowledged(ctx, ns) }).WithContext(ctx).WithTimeout(2*time.Minute).Should(BeNumerically(">", earlier+20), "the writer is stuck")
	Expect(phase(ctx, ns, "writer")).To(Equal("Running"), "the writer has ended or failed")
	return acknowledged(ctx, ns)
}

// checkRestored restores a group snapshot, which was asked for when before records were
// acknowledged and was there when after records were, and checks the order of its records. It
// deletes the snapshot and what was restored, and checks that nothing is left.
func checkRestored(ctx context.Context, ns, cut, handle string, before, after int) {
	GinkgoHelper()
	suffix := "-" + cut
	out, err := run(ctx, "", "kubectl", "gemel", "group", "restore", cut, "-n", ns, "--suffix="+suffix)
	Expect(err).NotTo(HaveOccurred())
	Expect(strings.Count(out, "claim "+ns+"/")).To(Equal(3), out)
	_, err = run(ctx, "", "kubectl", "gemel", "group", "restore", cut, "-n", ns, "--suffix="+suffix)
	Expect(err).To(MatchError(ContainSubstring("exists: set --prefix or --suffix")))
	devicesPod(ctx, ns, cut, "sleep infinity", [3]string{"one" + suffix, "two" + suffix, "three" + suffix})
	read := inPod(ctx, ns, cut, fmt.Sprintf(readRecords, recordMiB))
	GinkgoWriter.Printf("%s: %d acknowledged before, %d after, held for %s at attempt %s, restored: %s\n", cut, before, after,
		field(ctx, "logicalunitgroupsnapshot", handle, "", "{.status.held}"), field(ctx, "logicalunitgroupsnapshot", handle, "", "{.status.attempt}"), read)
	n, err := strconv.Atoi(read)
	if err != nil || n < before {
		results.LostWrites++
	}
	Expect(err).NotTo(HaveOccurred(), "the records are no prefix: "+read)
	Expect(n).To(And(BeNumerically(">=", before), BeNumerically("<=", after+1)), "records in the snapshot")
	deletePod(ctx, ns, cut)

	// What was restored outlives the group, of which nothing is left.
	kubectl(ctx, "delete", "volumegroupsnapshot", cut, "-n", ns, "--wait=true", "--timeout=120s")
	Eventually(func() string {
		return kubectl(ctx, "get", "volumesnapshot", "-n", ns, "-o", "name") + membersLeft(ctx, handle) + field(ctx, "logicalunitgroupsnapshot", handle, "", "{.metadata.name}") +
			kubectl(ctx, "get", "volumegroupsnapshotcontent", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.volumeGroupSnapshotRef.namespace=="%s")].metadata.name}`, ns))
	}).WithContext(ctx).Should(BeEmpty())
	Expect(field(ctx, "pvc", "one"+suffix, ns, "{.status.phase}")).To(Equal("Bound"))
	kubectl(ctx, "delete", "pvc", "-n", ns, "one"+suffix, "two"+suffix, "three"+suffix, "--wait=true", "--timeout=120s")
}

var _ = Describe("a group of three claims", Label("groups"), func() {
	It("is snapshotted at one instant while it is written to, restored and deleted", func(ctx context.Context) {
		inSync(ctx)
		ns := newNamespace(ctx)
		orderedClaims(ctx, ns)
		for _, cut := range []string{"first", "second", "third"} {
			before := moreWritten(ctx, ns)
			askGroupSnapshot(ctx, ns, cut)
			handle := awaitGroupSnapshot(ctx, ns, cut)
			after := acknowledged(ctx, ns)
			Expect(phase(ctx, ns, "writer")).To(Equal("Running"), "the writer has ended or failed")
			Expect(strings.Fields(membersLeft(ctx, handle))).To(HaveLen(3))
			checkRestored(ctx, ns, cut, handle, before, after)
		}
		deletePod(ctx, ns, "writer")
	}, NodeTimeout(20*time.Minute))

	// The victim ends as soon as the owner holds members, and the owner's partner is slow, so that
	// it holds them for longer than a kill takes. The kills end when one has interrupted an
	// attempt: it comes to nothing, and a later one is restored.
	for _, victim := range []string{"an owner", "the operator"} {
		It("is snapshotted although "+victim+" ends while it is cut", func(ctx context.Context) {
			inSync(ctx)
			ns := newNamespace(ctx)
			orderedClaims(ctx, ns)
			const rounds = 6
			interrupted := false
			for round := 1; round <= rounds && !interrupted; round++ {
				cut := fmt.Sprintf("killed%d", round)
				before := moreWritten(ctx, ns)
				owner := field(ctx, "logicalunit", lunOf(ctx, ns, "two"), "", "{.status.owner}")
				partner := otherNode(owner)
				restore := slowTarget(ctx, targetWorker(ctx, partner), partner)
				process, where := targetProcess(owner), []string{targetWorker(ctx, owner)}
				if victim == "the operator" { // both of its processes
					process = "^/usr/local/bin/gemel-operator"
					where = strings.Fields(kubectl(ctx, "get", "pod", "-n", namespace, "-l", "app.kubernetes.io/component=operator", "-o", "jsonpath={.items[*].spec.nodeName}"))
					slices.Sort(where)
					where = slices.Compact(where) // a second kill on one worker would find nothing
				}
				killed := killWhenHeld(ctx, owner, process, where...)
				askGroupSnapshot(ctx, ns, cut)
				killed()
				restore(ctx)
				handle := awaitGroupSnapshot(ctx, ns, cut)
				after := acknowledged(ctx, ns)
				interrupted = field(ctx, "logicalunitgroupsnapshot", handle, "", "{.status.attempt}") != "1"
				inSync(ctx)
				moreWritten(ctx, ns)
				checkRestored(ctx, ns, cut, handle, before, after)
			}
			Expect(interrupted).To(BeTrue(), "%s did not end in the middle of a cut in %d tries", victim, rounds)
			deletePod(ctx, ns, "writer")
		}, NodeTimeout(30*time.Minute))
	}
})
