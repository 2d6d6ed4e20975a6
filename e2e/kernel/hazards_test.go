package kernel

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
)

// What the numbers mean is in the list of hazards of docs/workers.md.
var _ = Describe("hazards of a worker", Ordered, ContinueOnFailure, func() {
	var r *rig
	var w *worker
	BeforeAll(func(ctx SpecContext) { r, w = newWorkerRig(ctx, "hazards") })
	AfterEach(func() { tellFailure(w) })

	raw := func(ctx context.Context) *volume { GinkgoHelper(); return w.raw(ctx) }
	sh := func(ctx context.Context, line string) string { GinkgoHelper(); return w.sh(ctx, line) }

	It("1, 2: a LUN that is not the expected one is refused", hazard(1, 2), Label("smoke"), func(ctx SpecContext) {
		right, wrong := raw(ctx), raw(ctx)
		Expect(right.stage(ctx)).To(Succeed())
		sh(ctx, "dd if=/dev/urandom of="+right.device()+" bs=1M count=1 oflag=direct status=none")
		context := maps.Clone(wrong.context)
		context[attach.KeyLUN] = right.context[attach.KeyLUN]
		wrong.context = context
		err := wrong.stage(ctx)
		Expect(status.Code(err)).To(Equal(codes.Unavailable), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("is another device")))
		Expect(sh(ctx, "ls /sys/block/dm-*/slaves | wc -l")).To(Equal("2"), "the other volume has lost paths")
		Expect(right.unstage(ctx)).To(Succeed())
		err = wrong.stage(ctx)
		Expect(status.Code(err)).To(Equal(codes.Unavailable), "%v", err)
		Expect(wrong.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("4, 15: two volumes share sessions that show no other LUN, and the last volume ends them", hazard(4, 15), func(ctx SpecContext) {
		v1, v2, unasked := raw(ctx), raw(ctx), raw(ctx)
		Expect(v1.stage(ctx)).To(Succeed())
		Expect(v2.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/class/iscsi_session | wc -l")).To(Equal("2"))
		Expect(sh(ctx, "grep -l GEMEL /sys/class/scsi_device/*/device/vendor | wc -l")).To(Equal("4"))
		Expect(sh(ctx, "ls /sys/class/scsi_device")).NotTo(ContainSubstring(":" + unasked.lunNumber() + "\n"))
		Expect(v1.unstage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/class/iscsi_session | wc -l")).To(Equal("2"))
		Expect(v2.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("6: a LUN number above 255 uses flat space addressing", hazard(6), func(ctx SpecContext) {
		v := raw(ctx)
		for i := 0; v.context[attach.KeyLUN] != "300" && i < 400; i++ {
			Expect(v.republish(ctx)).To(Succeed())
		}
		Expect(v.lunNumber()).To(Equal("300"))
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/class/scsi_device")).To(ContainSubstring(fmt.Sprint(0x4000 | 300)))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("13: a map that was left suspended is resumed", hazard(13), func(ctx SpecContext) {
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		sh(ctx, "dmsetup suspend 3"+v.wwid)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "cat /sys/block/dm-*/dm/suspended")).To(Equal("0"))
		sh(ctx, "dmsetup suspend 3"+v.wwid)
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("12: a map that a process has open is not removed", hazard(12), func(ctx SpecContext) {
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		sh(ctx, "sleep 1000 <"+v.device()+" >/dev/null 2>&1 & echo $! >/tmp/holder; sleep 0.3")
		Expect(status.Code(v.unstage(ctx))).To(Equal(codes.FailedPrecondition))
		Expect(v.stage(ctx)).To(Succeed())
		sh(ctx, "kill $(cat /tmp/holder)")
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("26: unwritten data of an earlier publish never reaches the LUN", hazard(26), func(ctx SpecContext) {
		v, err := w.create(ctx, 512<<20, "a", "xfs")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		sh(ctx, "echo kept >"+v.path()+"/kept; sync -f "+v.path())
		sh(ctx, "exec 7>"+v.path()+"/late; echo late >&7; sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/holder; sleep 0.3")
		old := v.wwid
		Expect(v.republish(ctx)).To(Succeed())
		Expect(v.wwid).To(Equal(old))
		err = v.stage(ctx)
		Expect(status.Code(err)).To(Equal(codes.FailedPrecondition), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("still used")))
		Expect(sh(ctx, "dmsetup table 3"+v.wwid)).To(ContainSubstring("error"))
		sh(ctx, "kill $(cat /tmp/holder)")
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		Expect(sh(ctx, "cat "+v.path()+"/kept; cat "+v.path()+"/late 2>/dev/null || true")).To(Equal("kept"))
		Expect(v.unpublish(ctx)).To(Succeed())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("11: a lock that a killed process left in open-iscsi's database is removed", hazard(11), func(ctx SpecContext) {
		v := raw(ctx)
		lock := "mkdir -p /run/lock/iscsi; touch /run/lock/iscsi/lock; ln /run/lock/iscsi/lock /run/lock/iscsi/lock.write"
		sh(ctx, lock)
		Expect(v.stage(ctx)).To(Succeed())
		sh(ctx, lock)
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("14, 16: the plugin may be killed at any time", hazard(14, 16), func(ctx SpecContext) {
		for _, after := range []time.Duration{50, 250, 500, 800, 1200, 1700, 2300, 3000} {
			v, err := w.create(ctx, 512<<20, "a", "xfs")
			Expect(err).NotTo(HaveOccurred())
			done := make(chan error, 1)
			go func() { done <- v.stage(ctx) }()
			time.Sleep(after * time.Millisecond)
			Expect(w.kill(ctx)).To(Succeed())
			GinkgoWriter.Println("killed after", after*time.Millisecond, <-done)
			Expect(w.start(ctx)).To(Succeed())
			if after%500 == 0 {
				Expect(v.unstage(ctx)).To(Succeed())
				Expect(w.left(ctx)).To(BeEmpty())
			}
			Expect(v.stage(ctx)).To(Succeed())
			Expect(sh(ctx, "grep -c "+v.staging()+" /proc/self/mounts")).To(Equal("1"))
			go func() { done <- v.unstage(ctx) }()
			time.Sleep(after / 2 * time.Millisecond)
			Expect(w.kill(ctx)).To(Succeed())
			GinkgoWriter.Println("killed after", after/2*time.Millisecond, <-done)
			Expect(w.start(ctx)).To(Succeed())
			Expect(v.unstage(ctx)).To(Succeed())
			Expect(w.left(ctx)).To(BeEmpty())
		}
	}, NodeTimeout(4*time.Minute))

	It("25: health and statistics answer while no path answers", hazard(25), func(ctx SpecContext) {
		v, err := w.create(ctx, 512<<20, "a", "xfs")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		reasons := func() []string { return v.reasons(ctx) }
		Eventually(reasons).Should(BeEmpty())
		Expect(r.net.silence(0, "portal")).To(Succeed())
		DeferCleanup(func() { _ = r.net.heal(0); _ = r.net.heal(1) })
		sh(ctx, "dd if=/dev/zero of="+v.path()+"/f bs=4k count=1 oflag=direct status=none") // notices
		Eventually(reasons).Should(ConsistOf("HostRedundancyLost"))
		Expect(r.net.silence(1, "portal")).To(Succeed())
		sh(ctx, "dd if=/dev/zero of="+v.path()+"/g bs=4k count=1 oflag=direct status=none >/dev/null 2>&1 &")
		Eventually(reasons).Should(ConsistOf("NoPath"))
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err = w.node.NodeGetVolumeStats(short, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.path()})
		GinkgoWriter.Println("stats:", err)
		Expect(short.Err()).NotTo(HaveOccurred())
		Expect(r.net.heal(0)).To(Succeed())
		Expect(r.net.heal(1)).To(Succeed())
		Eventually(reasons).Should(BeEmpty())
		Expect(v.unpublish(ctx)).To(Succeed())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("22: an ext4 filesystem with an error is reported, and repaired by the next stage", hazard(22), func(ctx SpecContext) {
		v, err := w.create(ctx, 512<<20, "a", "ext4")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(Succeed())
		reasons := func() []string { return v.reasons(ctx) }
		Eventually(reasons).Should(BeEmpty())
		trigger := "echo made up >/sys/fs/ext4/$(basename $(readlink -f " + v.device() + "))/trigger_fs_error"
		sh(ctx, trigger)
		Eventually(reasons).Should(ConsistOf("FilesystemErrors"))
		sh(ctx, "mount -o remount,errors=remount-ro "+v.staging()+"; "+trigger)
		Eventually(reasons).Should(ConsistOf("FilesystemReadOnly"))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(v.stage(ctx)).To(Succeed())
		Eventually(reasons).Should(BeEmpty())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("11: a volume that was unpublished while it was in use is removed", hazard(11), func(ctx SpecContext) {
		v, err := w.create(ctx, 512<<20, "a", "xfs")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		sh(ctx, "dd if=/dev/zero of="+v.path()+"/f bs=1M count=8 status=none")
		_, err = r.pair.Client(0).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: v.id, HostIqn: w.iqn})
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() error { return v.unpublish(ctx) }).WithTimeout(90 * time.Second).Should(Succeed())
		Eventually(func() error { return v.unstage(ctx) }).WithTimeout(90 * time.Second).Should(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(4*time.Minute))

	// udev opens a map whenever the map has changed, and waits as long as I/O waits: --io-deadline.
	// Until then the map is in use, which looks like a use that matters, and the caller calls
	// again, as kubelet does.
	It("14: a volume is removed while no portal answers", hazard(14), func(ctx SpecContext) {
		for _, looks := range []bool{false, true} {
			v := raw(ctx)
			Expect(v.stage(ctx)).To(Succeed())
			DeferCleanup(func() { _ = r.net.heal(0); _ = r.net.heal(1) })
			Expect(r.net.silence(0, "portal")).To(Succeed())
			Expect(r.net.silence(1, "portal")).To(Succeed())
			if looks {
				sh(ctx, "udevadm trigger --action=change "+v.device())
			}
			Eventually(func() error {
				err := v.unstage(ctx)
				GinkgoWriter.Println("unstaged:", err)
				if err != nil && !strings.Contains(err.Error(), "map in use") {
					return StopTrying("for another reason").Wrap(err)
				}
				return err
			}).WithTimeout(90 * time.Second).WithPolling(time.Second).Should(Succeed())
			Expect(w.left(ctx)).To(BeEmpty())
			Expect(r.net.heal(0)).To(Succeed())
			Expect(r.net.heal(1)).To(Succeed())
		}
	}, NodeTimeout(5*time.Minute))

	It("5: a portal that does not answer is a missing path, which comes back alone or with the next call", hazard(5), func(ctx SpecContext) {
		Expect(r.net.silence(1, "portal")).To(Succeed())
		DeferCleanup(func() { _ = r.net.heal(1) })
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/block/dm-*/slaves | wc -l")).To(Equal("1"))
		Expect(r.net.heal(1)).To(Succeed())
		Expect(w.kill(ctx)).To(Succeed())
		Expect(w.start(ctx)).To(Succeed())
		_, err := v.expand(ctx, 128<<20)
		Expect(err).NotTo(HaveOccurred())
		Expect(sh(ctx, "ls /sys/block/dm-*/slaves | wc -l")).To(Equal("2"))
		Expect(v.unpublish(ctx)).To(Succeed())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("18: the session to a portal that was removed is ended", hazard(18), func(ctx SpecContext) {
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/class/iscsi_session | wc -l")).To(Equal("2"))
		changed := maps.Clone(v.context)
		changed[attach.KeyPortals] = v.portals[1].Address
		v.context = changed
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "cat /sys/class/iscsi_connection/*/persistent_address")).To(Equal(portalIP[1]))
		Expect(sh(ctx, "find /etc/iscsi/nodes -type f | wc -l")).To(Equal("1"))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	cloneHazards(func() *worker { return w })

	It("1: a LUN number that was given to another LUN shows that LUN", hazard(1), func(ctx SpecContext) {
		Expect(r.startPair(ctx)).To(Succeed())
		v1 := raw(ctx)
		Expect(v1.stage(ctx)).To(Succeed())
		Expect(r.startPair(ctx)).To(Succeed())
		v2 := raw(ctx)
		Expect(v2.lunNumber()).To(Equal(v1.lunNumber()))
		Eventually(func() error { return v2.stage(ctx) }).Should(Succeed())
		Expect(sh(ctx, "cat /sys/class/scsi_device/*/device/wwid | grep naa.602474d | sort -u")).To(Equal("naa." + v2.wwid))
		Expect(v1.unstage(ctx)).To(Succeed())
		Expect(sh(ctx, "udevadm settle; blockdev --getsize64 "+v2.device())).To(Equal(fmt.Sprint(64 << 20))) // it has the same dm-N
		Expect(v2.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})
})
