package kernel

import (
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// shared is one LUN as raw ReadWriteMany volume of two workers, which keep each other off by
// persistent reservations (SPC-4 §5.13), as cluster software does.
type shared struct {
	*volume
	key string
}

// persist is a PERSISTENT RESERVE OUT on every path, the way multipath does it; it also registers
// paths that come back.
func (s *shared) persist(ctx context.Context, arguments string) (string, error) {
	return s.w.Shell(ctx, "exec 2>&1; mpathpersist --out "+arguments+" /dev/mapper/3"+s.wwid)
}

// write writes a block past what the load uses.
func (s *shared) write(ctx context.Context) error {
	_, err := s.w.Shell(ctx, "dd if=/dev/urandom of="+s.device()+" bs=4k count=1 seek=10000 oflag=direct 2>&1")
	return err
}

func (s *shared) read(ctx context.Context) error {
	_, err := s.w.Shell(ctx, "dd if="+s.device()+" of=/dev/null bs=4k count=1 iflag=direct")
	return err
}

var _ = Describe("a raw volume of two workers", Ordered, func() {
	o := &ordeal{}
	var both [2]*shared
	BeforeAll(func(ctx SpecContext) {
		o.r, o.w = newWorkerRig(ctx, "shared")
		second, err := o.r.worker(ctx, "shared-2")
		Expect(err).NotTo(HaveOccurred())
		for _, w := range []*worker{o.w, second} {
			w.sh(ctx, `printf 'defaults {\n\treservation_key file\n}\n' >/etc/multipath.conf; multipathd reconfigure`)
		}
		o.v, err = o.w.create(ctx, 64<<20, "a", "")
		Expect(err).NotTo(HaveOccurred())
		o.v.cap.AccessMode = &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}
		other, err := o.v.mapTo(ctx, second)
		Expect(err).NotTo(HaveOccurred())
		both = [2]*shared{{o.v, "0xa1"}, {other, "0xb2"}}
		for _, s := range both {
			Expect(s.stage(ctx)).To(Succeed())
			Expect(s.publish(ctx)).To(Succeed())
		}
	})
	AfterEach(func() {
		workers := []*worker{o.w}
		if both[1] != nil {
			workers = append(workers, both[1].w)
		}
		tellFailure(workers...)
	})

	// refused: the second worker gets a reservation conflict, and may read.
	refused := func(ctx context.Context) {
		GinkgoHelper()
		Expect(both[1].write(ctx)).To(MatchError(ContainSubstring("Invalid exchange"))) // the kernel's EBADE: a reservation conflict
		Expect(both[1].read(ctx)).To(Succeed())
	}

	It("is written by both workers while both are registered", func(ctx SpecContext) {
		for _, s := range both {
			Expect(s.write(ctx)).To(Succeed())
			out, err := s.persist(ctx, "--register --param-sark="+s.key)
			Expect(err).NotTo(HaveOccurred(), out)
		}
		out, err := both[0].persist(ctx, "--reserve --param-rk="+both[0].key+" --prout-type=5") // write exclusive, registrants only
		Expect(err).NotTo(HaveOccurred(), out)
		for _, s := range both {
			Expect(s.write(ctx)).To(Succeed())
			out := s.w.sh(ctx, "sg_persist --in --read-keys /dev/$(ls /sys/block/$(basename $(readlink -f "+s.device()+"))/slaves | head -1)")
			for _, other := range both {
				Expect(strings.Count(out, other.key)).To(Equal(2), "a registration for each path: %s", out)
			}
		}
	})

	It("refuses the writes of the worker that is not registered", func(ctx SpecContext) {
		out, err := both[1].persist(ctx, "--register --param-rk="+both[1].key+" --param-sark=0")
		Expect(err).NotTo(HaveOccurred(), out)
		refused(ctx)
		o.l, err = startLoad(ctx, o.w.Guest, o.v.device(), 32<<20, 4)
		Expect(err).NotTo(HaveOccurred())
	})

	It("still refuses them when ownership moves and a node is killed, and accepts every write of the other worker", func(ctx SpecContext) {
		for range 2 {
			o.event(ctx, "planned transfer", &results.Pause.PlannedTransfer, plannedBound, func() error { return o.v.move(ctx, 1-o.owner(ctx)) })
			refused(ctx)
			o.settled(ctx)
			refused(ctx)
		}
		i := o.owner(ctx)
		o.event(ctx, "owner killed", &results.Pause.OwnerKilled, killedBound, func() error { return o.r.pair.Kill(i) })
		refused(ctx)
		Expect(o.r.pair.StartNode(i)).To(Succeed())
		o.settled(ctx)
		both[1].settled(ctx)
		refused(ctx)
	})

	It("is taken over by the other worker, which then shuts out the first one", func(ctx SpecContext) {
		m, err := o.l.finish(ctx)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("operations", m.Operations)
		Expect(m.Errors).To(BeEmpty())
		Expect(m.Lost).To(BeEmpty())
		for _, arguments := range []string{"--register --param-sark=" + both[1].key,
			fmt.Sprintf("--preempt --param-rk=%s --param-sark=%s --prout-type=5", both[1].key, both[0].key)} {
			out, err := both[1].persist(ctx, arguments)
			Expect(err).NotTo(HaveOccurred(), out)
		}
		Expect(both[1].write(ctx)).To(Succeed())
		Expect(both[0].write(ctx)).To(MatchError(ContainSubstring("Invalid exchange")))
		out, err := both[1].persist(ctx, "--clear --param-rk="+both[1].key)
		Expect(err).NotTo(HaveOccurred(), out)
		for _, s := range both {
			Expect(s.write(ctx)).To(Succeed())
			Expect(s.unpublish(ctx)).To(Succeed())
			Expect(s.unstage(ctx)).To(Succeed())
			Expect(s.w.left(ctx)).To(BeEmpty())
		}
	})
})
