package kernel

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/page"
)

const (
	stripedLUNs = 4
	stripeBytes = 256 << 10
)

// striped makes a volume over four LUNs, which both nodes own in turn, and publishes it.
func (w *worker) striped(ctx context.Context, size uint64, fs string) *volume {
	GinkgoHelper()
	return w.stripedOver(ctx, size, fs, w)
}

// stripedOver is striped for LUNs of several pairs in turn; each of pairs is the worker as one of
// them knows it.
func (w *worker) stripedOver(ctx context.Context, size uint64, fs string, pairs ...*worker) *volume {
	GinkgoHelper()
	v := &volume{id: "striped-" + uuid.NewString(), w: w}
	a := attach.Attachment{VolumeID: v.id, HostIQN: w.iqn, Stripe: stripeBytes, Others: make([]attach.Target, len(pairs)-1)}
	var generations [2]uint64
	for i := range stripedLUNs {
		at := i % len(pairs)
		leg, err := pairs[at].create(ctx, size/stripedLUNs, harness.Names[i/len(pairs)%2], fs)
		Expect(err).NotTo(HaveOccurred())
		v.legs, v.cap, v.portals = append(v.legs, leg), leg.cap, leg.portals
		one, err := attach.FromPublishContext(leg.id, leg.context)
		Expect(err).NotTo(HaveOccurred())
		if at == 0 {
			a.TargetIQN, a.Portals = one.TargetIQN, one.Portals
		} else {
			a.Others[at-1] = attach.Target{IQN: one.TargetIQN, Portals: one.Portals}
		}
		generations[at] = max(generations[at], one.Generation)
		a.Legs = append(a.Legs, attach.Leg{LUN: one.LUN, WWID: one.WWID, Target: at})
	}
	a.Generation = generations[0] + generations[1]
	v.context = a.PublishContext()
	return v
}

// legsSettled is settled for all LUNs of a striped volume.
func (v *volume) legsSettled(ctx context.Context) {
	GinkgoHelper()
	for _, l := range v.legs {
		l.settled(ctx)
	}
}

// below names the maps that a striped one has, in the order of its table.
func (v *volume) below(ctx context.Context) string {
	GinkgoHelper()
	return v.w.sh(ctx, `set -- $(dmsetup table `+v.device()+`); shift 5
while [ $# -gt 0 ]; do cat /sys/dev/block/$1/dm/uuid; shift 2; done`)
}

func (v *volume) inOrder() string {
	var out []string
	for _, l := range v.legs {
		out = append(out, "mpath-3"+l.wwid)
	}
	return strings.Join(out, "\n")
}

var _ = Describe("a striped volume on a worker", Ordered, func() {
	var r *rig
	var w *worker
	var t *tried
	BeforeAll(func(ctx SpecContext) {
		r, w = newWorkerRig(ctx, "striped")
		w.sh(ctx, "dmesg -C")
	})
	AfterEach(func() { tellFailure(w) })

	It("32: is one device over the maps of its LUNs, in their order", hazard(32), Label("smoke"), func(ctx SpecContext) {
		t = tryOn(ctx, w.striped(ctx, 512<<20, "xfs"), "xfs")
		Expect(t.stage(ctx)).To(Succeed(), "again")
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		Expect(w.sh(ctx, "multipath -ll | grep -c GEMEL,ALUA; ls /dev/mapper | grep -c ^gemel-")).To(Equal("4\n1"))
		t.goesOn(ctx)
	})

	It("holds what was written while its LUNs move", func(ctx SpecContext) {
		for range 2 {
			for _, l := range t.legs {
				i, err := l.owner(ctx)
				Expect(err).NotTo(HaveOccurred())
				Expect(l.move(ctx, 1-i)).To(Succeed())
			}
			t.goesOn(ctx)
		}
	})

	It("holds what was written while nodes are killed", func(ctx SpecContext) {
		for i := range harness.Names {
			Expect(r.pair.Kill(i)).To(Succeed())
			t.goesOn(ctx)
			Expect(r.pair.StartNode(i)).To(Succeed())
			t.legsSettled(ctx)
		}
	})

	It("33: goes on without the plugin, which finds it again, and under whatever name udev gives it", hazard(33), func(ctx SpecContext) {
		Expect(w.kill(ctx)).To(Succeed())
		t.goesOn(ctx)
		w.sh(ctx, "udevadm control --reload; udevadm trigger --subsystem-match=block --action=change; udevadm settle; multipathd reconfigure")
		Expect(w.start(ctx)).To(Succeed())
		Expect(t.stage(ctx)).To(Succeed())
		Expect(t.publish(ctx)).To(Succeed())
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		t.legsSettled(ctx)
		t.goesOn(ctx)
	})

	It("23: grows under load", hazard(23), func(ctx SpecContext) {
		size, err := t.expand(ctx, 768<<20)
		Expect(err).NotTo(HaveOccurred())
		Expect(size).To(BeEquivalentTo(768 << 20))
		Expect(w.sh(ctx, "[ $(df -B1M --output=size "+t.path()+" | tail -1) -gt 600 ] && echo grown")).To(Equal("grown"))
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		t.goesOn(ctx)
	})

	It("is clean in the end", func(ctx SpecContext) {
		t.end(ctx)
		Expect(w.complaints(ctx)).To(BeEmpty())
		t.clean(ctx)
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(5*time.Minute))

	It("can be put together without Gemel, as docs/without-gemel.md says", func(ctx SpecContext) {
		steps, err := page.Steps("without-gemel.md")
		Expect(err).NotTo(HaveOccurred())
		Expect(steps).To(HaveKey("map"))
		Expect(w.sh(ctx, `set -e; cd "$(mktemp -d)"; mkdir -p volumes/default/luns files mnt
head -c 3000000 /dev/urandom >files/wanted
truncate -s 64M whole; mkfs.ext4 -q -d files whole
for k in $(seq 0 255); do
  dd if=whole of=volumes/default/luns/part$((k % 4)).img bs=256k skip=$k seek=$((k / 4)) count=1 conv=notrunc status=none
done
for i in 0 1 2 3; do printf 'default\tpart%s\t16777216\t262144\n' $i; done >legs.tsv
name=page-test mnt=mnt
`+steps["map"]+`
cmp files/wanted mnt/wanted && echo same
umount mnt; dmsetup remove --retry page-test; losetup -D`)).To(Equal("same"))
	})

	It("31: is not made without one of its LUNs", hazard(31), func(ctx SpecContext) {
		v := w.striped(ctx, 64<<20, "")
		_, err := r.pair.Client(0).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: v.legs[2].id, HostIqn: w.iqn})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(MatchError(ContainSubstring("leg 2")))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("34: is removed although one of its LUNs is gone", hazard(34), func(ctx SpecContext) {
		v := w.striped(ctx, 64<<20, "")
		Expect(v.stage(ctx)).To(Succeed())
		_, err := r.pair.Client(0).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: v.legs[1].id, HostIqn: w.iqn})
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() []string { return v.reasons(ctx) }).WithTimeout(time.Minute).ShouldNot(BeEmpty())
		// udev may look into the map that lost its paths, until this gives up to wait for one.
		Eventually(func() error { return v.unstage(ctx) }).WithTimeout(2 * time.Minute).Should(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("17: comes back whole after the worker has lost its power", hazard(17), func(ctx SpecContext) {
		t := tryOn(ctx, w.striped(ctx, 512<<20, "ext4"), "ext4")
		sums := w.sh(ctx, "cd "+t.path()+" && mkdir kept && for i in $(seq 20); do head -c 700k /dev/urandom >kept/$i; done && sync -f . && sha256sum kept/*")
		t.goesOn(ctx)
		w.sh(ctx, "sync")
		_ = w.conn.Close()
		Expect(w.Reset(ctx)).To(Succeed())
		w.sh(ctx, daemons)
		Expect(w.start(ctx)).To(Succeed())
		Expect(t.stage(ctx)).To(Succeed())
		Expect(t.publish(ctx)).To(Succeed())
		Expect(w.sh(ctx, "cd "+t.path()+" && sha256sum kept/*")).To(Equal(sums))
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		w.sh(ctx, "rm "+t.path()+"/fsx "+t.path()+"/checked*; rm -f "+t.log("fsx")+" "+t.log("fio"))
		t.use(ctx)
		t.goesOn(ctx)
		t.end(ctx)
		t.clean(ctx)
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(8*time.Minute))
})
