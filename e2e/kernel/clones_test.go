package kernel

import (
	"context"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
)

// clone makes a LUN of a volume's content and publishes it to the same worker.
func (v *volume) clone(ctx context.Context) (*volume, error) {
	c, id := v.w.rig.pair.Client(0), uuid.NewString()
	l, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: v.lun.SizeBytes, SourceLunUuid: v.id})
	if err != nil {
		return nil, err
	}
	other := &volume{id: l.Uuid, lun: l, cap: v.cap}
	return other.mapTo(ctx, v.w)
}

// mapTo publishes the same LUN to a worker.
func (v *volume) mapTo(ctx context.Context, w *worker) (*volume, error) {
	m, err := w.rig.pair.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: v.id, HostIqn: w.iqn, Chap: w.chap})
	if err != nil {
		return nil, err
	}
	other := &volume{id: v.id, lun: v.lun, cap: v.cap, w: w}
	other.published(m)
	return other, nil
}

// cloneHazards are those of LUNs that are like others.
func cloneHazards(worker func() *worker) {
	It("24: a clone is mounted beside its source", hazard(24), func(ctx SpecContext) {
		w := worker()
		v, err := w.create(ctx, 512<<20, "a", "xfs")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		w.sh(ctx, "echo old >"+v.path()+"/f; sync -f "+v.path())
		c, err := v.clone(ctx)
		Expect(err).NotTo(HaveOccurred())
		w.sh(ctx, "echo new >"+v.path()+"/f")
		Expect(c.stage(ctx)).To(Succeed())
		Expect(c.publish(ctx)).To(Succeed())
		Expect(w.sh(ctx, "cat "+v.path()+"/f "+c.path()+"/f")).To(Equal("new\nold"))
		for _, x := range []*volume{c, v} {
			Expect(x.unpublish(ctx)).To(Succeed())
			Expect(x.unstage(ctx)).To(Succeed())
		}
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("3: both nodes name a LUN alike, and no other so", hazard(3), func(ctx SpecContext) {
		w := worker()
		v1, v2 := w.raw(ctx), w.raw(ctx)
		Expect(v1.wwid).NotTo(Equal(v2.wwid))
		for _, v := range []*volume{v1, v2} {
			Expect(v.stage(ctx)).To(Succeed())
			Expect(w.sh(ctx, "grep -lx naa."+v.wwid+" /sys/class/scsi_device/*/device/wwid | wc -l")).To(Equal("2"), "each path")
		}
		for _, v := range []*volume{v1, v2} {
			Expect(v.unstage(ctx)).To(Succeed())
		}
		Expect(w.left(ctx)).To(BeEmpty())
	})
}
