package kernel

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// soon limits repairs that begin with an event of the kernel; sometime limits repairs that begin
// with a periodic check. The emulated machine is slow.
const (
	soon     = 25 * time.Second
	sometime = 2 * time.Minute
)

var _ = Describe("19: without a call, a worker", hazard(19), Ordered, ContinueOnFailure, func() {
	var r *rig
	var w *worker
	var v *volume
	BeforeAll(func(ctx SpecContext) {
		r, w = newWorkerRig(ctx, "heal")
		w.chap = &targetv1.CHAP{User: "w", Secret: "correct-horse-battery", MutualUser: "pair", MutualSecret: "staple-of-the-pair"}
	})
	BeforeEach(func(ctx SpecContext) {
		v = w.raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
	})
	AfterEach(func(ctx SpecContext) {
		tellFailure(w)
		Expect(v.unpublish(ctx)).To(Succeed())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	sh := func(ctx context.Context, line string) string { GinkgoHelper(); return w.sh(ctx, line) }
	// paths are what multipathd sees of the map, a line each.
	paths := func(ctx context.Context) func() (string, error) {
		return func() (string, error) {
			return w.Shell(ctx, `multipathd show paths format "%w %t %T" | grep -c "3`+v.wwid+` *active *ready"; true`)
		}
	}
	whole := func(ctx context.Context, limit time.Duration) {
		GinkgoHelper()
		begin := time.Now()
		Eventually(paths(ctx)).WithTimeout(limit).Should(Equal("2\n"))
		AddReportEntry("whole again after", time.Since(begin).Round(100*time.Millisecond).String())
	}
	session := func(ctx context.Context, i int) string {
		GinkgoHelper()
		return sh(ctx, `for c in /sys/class/iscsi_connection/*; do [ "$(cat $c/persistent_address)" = `+portalIP[i]+` ] && basename $c | sed 's/connection\(.*\):0/\1/'; done; true`)
	}

	// The first spec: LUN numbers begin again with the second pair.
	It("removes the device of another LUN under the same number", func(ctx SpecContext) {
		whole(ctx, soon)
		Expect(r.startPair(ctx)).To(Succeed()) // with the name, portals and LUN numbers of the first
		next := w.raw(ctx)
		Expect(next.lunNumber()).To(Equal(v.lunNumber()))
		Eventually(func() (string, error) { return w.Shell(ctx, "cat /sys/class/iscsi_session/*/state | sort -u") }).WithTimeout(sometime).Should(Equal("LOGGED_IN\n"))
		// If the kernel has not noticed already, the test deletes one path, which has to be
		// scanned; the other path is found to be wrong.
		sh(ctx, "d=$(ls /sys/block/dm-*/slaves | tail -1); [ -z $d ] || echo 1 >/sys/block/$d/device/delete; true")
		Eventually(func() string { return w.log() }).WithTimeout(soon).Should(ContainSubstring(`step="remove the path`))
		// The worker scans for the LUN less and less often, and the wrong device does not stay.
		Eventually(func() (string, error) { return w.Shell(ctx, "cat /sys/class/scsi_device/*/device/wwid; true") }).WithTimeout(sometime).
			ShouldNot(ContainSubstring(next.wwid))
		Expect(sh(ctx, "cat /sys/block/dm-*/dm/uuid; true")).NotTo(ContainSubstring(next.wwid))
	}, NodeTimeout(6*time.Minute))

	It("logs in again when a session was ended", func(ctx SpecContext) {
		whole(ctx, soon)
		before := session(ctx, 1)
		sh(ctx, "iscsiadm -m session -r "+before+" --logout")
		Eventually(func() string { return session(ctx, 1) }).WithTimeout(soon).ShouldNot(Or(BeEmpty(), Equal(before)))
		whole(ctx, soon)
	})

	It("logs in again to a portal that was silent for a time", func(ctx SpecContext) {
		whole(ctx, soon)
		Expect(r.net.silence(1, "portal")).To(Succeed())
		DeferCleanup(func() { _ = r.net.heal(1) })
		Eventually(func() (string, error) {
			return w.Shell(ctx, "cat /sys/class/iscsi_session/session"+session(ctx, 1)+"/state")
		}).ShouldNot(Equal("LOGGED_IN\n"))
		sh(ctx, "iscsiadm -m session -r "+session(ctx, 1)+" --logout")
		Eventually(func() string { return w.log() }).WithTimeout(sometime).Should(ContainSubstring("login failed"))
		Expect(r.net.heal(1)).To(Succeed())
		whole(ctx, sometime)
	}, NodeTimeout(6*time.Minute))

	It("29: replaces a session that cannot log in again with its former secrets", hazard(29), func(ctx SpecContext) {
		whole(ctx, soon)
		change := func(c *targetv1.CHAP) {
			GinkgoHelper()
			_, err := r.pair.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: v.id, HostIqn: w.iqn, Chap: c})
			Expect(err).NotTo(HaveOccurred())
		}
		change(&targetv1.CHAP{User: "w", Secret: "another-horse-battery", MutualUser: "pair", MutualSecret: "staple-of-the-pair"})
		Expect(r.net.silence(1, "portal")).To(Succeed())
		DeferCleanup(func() { _ = r.net.heal(1) })
		Eventually(func() (string, error) {
			return w.Shell(ctx, "cat /sys/class/iscsi_session/session"+session(ctx, 1)+"/state")
		}).ShouldNot(Equal("LOGGED_IN\n"))
		Expect(r.net.heal(1)).To(Succeed())
		// iscsid tries for ever, and does not say why it fails.
		Eventually(func() string { return w.log() }).WithTimeout(sometime).Should(ContainSubstring("the target refused the login"))
		Expect(session(ctx, 1)).To(BeEmpty())
		Expect(session(ctx, 0)).NotTo(BeEmpty(), "a session that is up stays")
		Expect(v.reasons(ctx)).To(ConsistOf("HostRedundancyLost"))
		change(w.chap)
		whole(ctx, sometime)
	}, NodeTimeout(8*time.Minute))

	It("finds a deleted disk again", func(ctx SpecContext) {
		whole(ctx, soon)
		sh(ctx, "echo 1 >/sys/block/$(ls /sys/block/dm-*/slaves | tail -1)/device/delete")
		whole(ctx, soon)
	})

	It("parts the paths of both nodes that are in one group", func(ctx SpecContext) {
		whole(ctx, soon)
		table := func(ctx context.Context) (string, error) { return w.Shell(ctx, "dmsetup table 3"+v.wwid) }
		Eventually(table).WithContext(ctx).WithTimeout(soon).Should(ContainSubstring("alua 2 1 "))
		sh(ctx, `m=3`+v.wwid+`; p='(8:[0-9]+ [0-9]+ [0-9]+)'; g='service-time 0 1 2 '
dmsetup table $m | sed -E "s/alua 2 1 $g$p $g$p/alua 1 1 service-time 0 2 2 \1 \2/" >/tmp/merged
dmsetup reload $m /tmp/merged && dmsetup suspend --noflush $m && dmsetup resume $m; dmsetup table $m | grep 'alua 1 1 '`)
		Eventually(func() string { return w.log() }).WithTimeout(sometime).Should(ContainSubstring("group the paths again"))
		Eventually(table).WithContext(ctx).WithTimeout(soon).Should(ContainSubstring("alua 2 1 "))
		whole(ctx, soon)
	}, NodeTimeout(6*time.Minute))

	It("grows a map with its LUN", func(ctx SpecContext) {
		whole(ctx, soon)
		_, err := r.pair.Client(0).ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: v.id, SizeBytes: 128 << 20})
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() (string, error) { return w.Shell(ctx, "blockdev --getsize64 "+v.device()) }).WithTimeout(soon).Should(Equal(fmt.Sprintln(128 << 20)))
		whole(ctx, soon)
	})

	It("does the same from a container", func(ctx SpecContext) {
		Expect(w.kill(ctx)).To(Succeed())
		w.enter = []string{"unshare", "--mount", "--net", "--ipc", "--"}
		Expect(w.start(ctx)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(w.kill(ctx)).To(Succeed())
			w.enter = nil
			Expect(w.start(ctx)).To(Succeed())
		})
		whole(ctx, soon)
		time.Sleep(10 * time.Second) // the first look, which needs no event, is over
		sh(ctx, "iscsiadm -m session -r "+session(ctx, 0)+" --logout")
		whole(ctx, soon)
		Expect(w.log()).NotTo(ContainSubstring("cannot subscribe to kernel events"))
	})
})
