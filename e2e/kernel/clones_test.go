package kernel

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
)

// clone creates a LUN with the content of a volume and publishes it to the same worker.
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

// only publishes the LUN to its worker again, read-only or writable.
func (v *volume) only(ctx context.Context, ro bool) error {
	c := v.w.rig.pair.Client(0)
	if _, err := c.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: v.id, HostIqn: v.w.iqn}); err != nil {
		return err
	}
	m, err := c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: v.id, HostIqn: v.w.iqn, ReadOnly: ro, Chap: v.w.chap})
	if err != nil {
		return err
	}
	v.published(m)
	mode := csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	if delete(v.context, attach.KeyReadOnly); ro {
		v.context[attach.KeyReadOnly], mode = "true", csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	}
	v.cap = &csi.VolumeCapability{AccessType: v.cap.AccessType, AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	return nil
}

// cloneHazards are the hazards of LUNs that have the content of another LUN.
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

	for _, fs := range []string{"xfs", "ext4"} {
		It("on a LUN that refuses writes, a clone with a dirty log is not mounted, and a clone with a replayed log is: "+fs, Label("readers"), func(ctx SpecContext) {
			w := worker()
			v, err := w.create(ctx, 512<<20, "a", fs)
			Expect(err).NotTo(HaveOccurred())
			Expect(v.stage(ctx)).To(Succeed())
			Expect(v.publish(ctx)).To(Succeed())
			w.sh(ctx, "for i in $(seq 100); do echo $i >"+v.path()+"/$i; sync "+v.path()+"/$i; done")
			c, err := v.clone(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(c.only(ctx, true)).To(Succeed())
			err = c.stage(ctx)
			Expect(status.Code(err)).To(Equal(codes.FailedPrecondition), "%v", err)
			Expect(err).To(MatchError(ContainSubstring("the log was never replayed")))
			Expect(c.unstage(ctx)).To(Succeed())

			Expect(c.only(ctx, false)).To(Succeed())
			Expect(c.stage(ctx)).To(Succeed())
			Expect(c.unstage(ctx)).To(Succeed())
			Expect(c.only(ctx, true)).To(Succeed())
			Expect(c.stage(ctx)).To(Succeed())
			Expect(c.publish(ctx)).To(Succeed())
			// A second worker reads it at the same time.
			second, err := w.rig.worker(ctx, "reader-"+fs)
			Expect(err).NotTo(HaveOccurred())
			d, err := c.mapTo(ctx, second)
			Expect(err).NotTo(HaveOccurred())
			Expect(d.only(ctx, true)).To(Succeed())
			Expect(d.stage(ctx)).To(Succeed())
			Expect(d.publish(ctx)).To(Succeed())
			for _, x := range []*volume{c, d} {
				Expect(x.w.sh(ctx, "cat "+x.path()+"/[0-9]* | sort -n | uniq | wc -l; touch "+x.path()+"/new 2>/dev/null || echo refused")).To(Equal("100\nrefused"))
				Expect(x.reasons(ctx)).To(BeEmpty())
			}
			for _, x := range []*volume{d, c, v} {
				Expect(x.unpublish(ctx)).To(Succeed())
				Expect(x.unstage(ctx)).To(Succeed())
			}
			Expect(w.left(ctx)).To(BeEmpty())
			Expect(second.left(ctx)).To(BeEmpty())
		})
	}

	It("3: both nodes give a LUN the same name, and no other LUN has that name", hazard(3), func(ctx SpecContext) {
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
