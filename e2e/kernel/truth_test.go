package kernel

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

const fsxPath = "/usr/local/bin/fsx"

// tried is a mounted volume whose content is known: fsx applies the operations of programs to one
// file and compares; fio writes other files with O_DIRECT and a checksum in each block, and reads
// them back.
type tried struct {
	*volume
	fs       string
	fsx, fio int // processes
}

// checks is what fio does over and over again: once over the file in random order, then everything
// is read and compared.
const checks = `n=0; while [ ! -e %[1]s.end ]; do
  fio --name=checked --filename=%[1]s --size=8m --rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=4 --end_fsync=1 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=$RANDOM --output=/tmp/fio-%[2]s.log || { cat /tmp/fio-%[2]s.log; exit 1; }
  n=$((n + 1)); echo pass $n
done`

// try stages and publishes a volume and begins to use it.
func (w *worker) try(ctx context.Context, fs, owner string) *tried {
	GinkgoHelper()
	v, err := w.create(ctx, 512<<20, owner, fs)
	Expect(err).NotTo(HaveOccurred())
	return tryOn(ctx, v, fs)
}

// tryOn is try with a volume that is there.
func tryOn(ctx context.Context, v *volume, fs string) *tried {
	GinkgoHelper()
	t := &tried{volume: v, fs: fs}
	Expect(t.stage(ctx)).To(Succeed())
	Expect(t.publish(ctx)).To(Succeed())
	t.use(ctx)
	return t
}

func (t *tried) log(what string) string { return "/tmp/" + what + "-" + t.fs + ".out" }

func (t *tried) use(ctx context.Context) {
	GinkgoHelper()
	program, err := os.ReadFile(fsx)
	Expect(err).NotTo(HaveOccurred())
	Expect(t.w.Put(ctx, fsxPath, 0o755, program)).To(Succeed())
	seed := fmt.Sprint(GinkgoRandomSeed())
	AddReportEntry("fsx on "+t.fs, "seed "+seed)
	t.fsx, err = t.w.Start(ctx, guest.Command{Argv: []string{fsxPath, t.path() + "/fsx", seed}, Log: t.log("fsx")})
	Expect(err).NotTo(HaveOccurred())
	line := fmt.Sprintf(checks, t.path()+"/checked", t.fs)
	t.fio, err = t.w.Start(ctx, guest.Command{Argv: []string{"bash", "-c", line}, Log: t.log("fio")})
	Expect(err).NotTo(HaveOccurred())
}

// done is the progress of both: hundreds of operations of fsx, passes of fio. It fails when one of
// them has ended.
func (t *tried) done(ctx context.Context) (n [2]int) {
	GinkgoHelper()
	for i, pid := range []int{t.fsx, t.fio} {
		text, err := t.w.Get(ctx, t.log([]string{"fsx", "fio"}[i]))
		Expect(err).NotTo(HaveOccurred())
		p, err := t.w.Look(ctx, pid)
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Running).To(BeTrue(), "%s: %s", t.fs, text)
		n[i] = strings.Count(string(text), "\n")
	}
	return n
}

// goesOn waits until both have made progress.
func (t *tried) goesOn(ctx context.Context) {
	GinkgoHelper()
	before := t.done(ctx)
	Eventually(func(g Gomega) {
		now := t.done(ctx)
		g.Expect(now[0]).To(BeNumerically(">=", before[0]+2))
		g.Expect(now[1]).To(BeNumerically(">=", before[1]+1))
	}).WithTimeout(2*time.Minute).WithPolling(500*time.Millisecond).Should(Succeed(), t.fs)
}

// end stops both, which then compare everything.
func (t *tried) end(ctx context.Context) {
	GinkgoHelper()
	before := t.done(ctx)
	t.w.sh(ctx, fmt.Sprintf("kill %d; touch %s/checked.end", t.fsx, t.path()))
	for i, pid := range []int{t.fsx, t.fio} {
		var p guest.Process
		Eventually(func() (bool, error) {
			var err error
			p, err = t.w.Look(ctx, pid)
			return p.Running, err
		}).WithTimeout(2 * time.Minute).Should(BeFalse())
		text, err := t.w.Get(ctx, t.log([]string{"fsx", "fio"}[i]))
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Exit).To(BeZero(), "%s: %s", t.fs, text)
	}
	AddReportEntry(t.fs, fmt.Sprintf("%d operations of fsx, %d passes of fio", (before[0]-1)*100, before[1]))
}

// clean takes the volume away and has its filesystem checked, which must find nothing.
func (t *tried) clean(ctx context.Context) {
	GinkgoHelper()
	Expect(t.unpublish(ctx)).To(Succeed())
	Expect(t.unstage(ctx)).To(Succeed())
	raw := *t.volume
	raw.cap = &csi.VolumeCapability{AccessMode: t.cap.AccessMode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	Expect(raw.stage(ctx)).To(Succeed())
	check := map[string]string{"xfs": "xfs_repair -n ", "ext4": "e2fsck -fn "}[t.fs]
	GinkgoWriter.Println(t.w.sh(ctx, check+raw.device()+" 2>&1"))
	Expect(raw.unstage(ctx)).To(Succeed())
}

// complaints are the messages of a guest's kernel about maps and filesystems that fail. A path that
// fails is not a complaint.
func (w *worker) complaints(ctx context.Context) string {
	GinkgoHelper()
	return w.sh(ctx, `dmesg | grep -E 'dm-[0-9]' | grep -iE 'error|corrupt|shut|abort|fail' | grep -v 'multipath: .*Failing path'; true`)
}

var _ = Describe("filesystems on a map", Ordered, func() {
	var r *rig
	var w *worker
	var all []*tried
	BeforeAll(func(ctx SpecContext) {
		r, w = newWorkerRig(ctx, "truth")
		w.sh(ctx, "dmesg -C")
		all = []*tried{w.try(ctx, "xfs", "a"), w.try(ctx, "ext4", "b")}
		eachGoesOn(ctx, all)
	})
	AfterEach(func() { tellFailure(w) })

	It("hold what was written while ownership moves", func(ctx SpecContext) {
		for range 4 {
			for _, t := range all {
				i, err := t.owner(ctx)
				Expect(err).NotTo(HaveOccurred())
				Expect(t.move(ctx, 1-i)).To(Succeed())
			}
			eachGoesOn(ctx, all)
		}
	})

	It("hold what was written while nodes are killed", func(ctx SpecContext) {
		for i := range harness.Names {
			Expect(r.pair.Kill(i)).To(Succeed())
			eachGoesOn(ctx, all)
			Expect(r.pair.StartNode(i)).To(Succeed())
			for _, t := range all {
				t.settled(ctx)
			}
		}
	})

	It("23: grow under load", hazard(23), func(ctx SpecContext) {
		for _, t := range all {
			size, err := t.expand(ctx, 768<<20)
			Expect(err).NotTo(HaveOccurred())
			Expect(size).To(BeEquivalentTo(768 << 20))
			Expect(w.sh(ctx, "[ $(df -B1M --output=size "+t.path()+" | tail -1) -gt 600 ] && echo grown")).To(Equal("grown"))
		}
		eachGoesOn(ctx, all)
	})

	It("are clean in the end", func(ctx SpecContext) {
		for _, t := range all {
			t.end(ctx)
			Expect(w.sh(ctx, "grep -c ' "+t.path()+" ' /proc/self/mounts")).To(Equal("1"))
		}
		Expect(w.complaints(ctx)).To(BeEmpty())
		for _, t := range all {
			t.clean(ctx)
		}
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(5*time.Minute))

	It("17: come back whole after the worker has lost its power", hazard(17), func(ctx SpecContext) { losePower(ctx, w) }, NodeTimeout(8*time.Minute))
})

func eachGoesOn(ctx context.Context, all []*tried) {
	GinkgoHelper()
	for _, t := range all {
		t.goesOn(ctx)
	}
}
