package kernel

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// sumBlock is the size of the blocks that have a checksum, in bytes.
const sumBlock = 4096

// image is a node's copy of the volume, past the target that serves it.
func (v *volume) image(node int) string {
	return filepath.Join(v.w.rig.pair.State[node], "volumes", "default", "luns", v.id+".img")
}

// places finds the blocks of a file's content in an image, by number. No two blocks may begin with
// the same bytes.
func places(path string, content []byte) (at map[int]int64, err error) {
	const head = 16
	number := map[[head]byte]int{}
	for i := 0; i < len(content); i += sumBlock {
		number[[head]byte(content[i:])] = i / sumBlock
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	at = map[int]int64{}
	buf := make([]byte, 256*sumBlock)
	for off := int64(0); ; off += int64(len(buf)) {
		n, err := io.ReadFull(f, buf)
		for i := 0; i+sumBlock <= n; i += sumBlock {
			if k, ok := number[[head]byte(buf[i:])]; ok && bytes.Equal(buf[i:i+sumBlock], content[k*sumBlock:(k+1)*sumBlock]) {
				at[k] = off + int64(i)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if len(at) != len(content)/sumBlock {
		return nil, fmt.Errorf("%s has %d of the file's %d blocks", path, len(at), len(content)/sumBlock)
	}
	return at, nil
}

// flip changes some bits of a block without an error, as a disk does.
func flip(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, sumBlock)
	if _, err = f.ReadAt(b, at); err == nil {
		for _, bit := range []int{7, 8*1000 + 3, 8*sumBlock - 1} {
			b[bit/8] ^= 1 << (bit % 8)
		}
		_, err = f.WriteAt(b, at)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// metric is one sample of the metrics of a target.
func (r *rig) metric(ctx context.Context, node int, sample string) (float64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.pair.Metrics[node]+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(a.Body)
	if err := errors.Join(err, a.Body.Close()); err != nil {
		return 0, err
	}
	return harness.Metric(string(answer), sample)
}

// patient gives a lease that is long enough for a starved machine: without the other node there
// would be no good copy of the damaged blocks.
func patient(o *harness.Options) { o.Args = append(o.Args, "--lease", "3s") }

var _ = Describe("bits that a disk flips under a mounted filesystem", Ordered, ContinueOnFailure, func() {
	var r *rig
	var w *worker
	BeforeAll(func(ctx SpecContext) { r, w = newWorkerRig(ctx, "damage", patient) })
	AfterEach(func() { tellFailure(w) })

	for i, fs := range []string{"xfs", "ext4"} {
		It("are healed, and the worker reads what it wrote: "+fs, func(ctx SpecContext) {
			v, err := w.create(ctx, 512<<20, harness.Names[i], fs)
			Expect(err).NotTo(HaveOccurred())
			Expect(v.stage(ctx)).To(Succeed())
			Expect(v.publish(ctx)).To(Succeed())
			file := v.path() + "/file"
			content := make([]byte, 512*sumBlock)
			_, _ = rand.Read(content) // never fails
			Expect(w.Put(ctx, file, 0o644, content)).To(Succeed())
			w.sh(ctx, "sync "+file+" "+v.path())
			v.settled(ctx)
			w.sh(ctx, "dmesg -C")
			read := func() {
				GinkgoHelper()
				out := w.sh(ctx, "echo 3 >/proc/sys/vm/drop_caches; sha256sum "+file)
				Expect(out).To(HavePrefix(fmt.Sprintf("%x ", sha256.Sum256(content))))
			}
			lives := func() string { // of the targets and the pair: what an error would have changed
				GinkgoHelper()
				s, err := r.pair.Status(ctx, 0)
				Expect(err).NotTo(HaveOccurred())
				return fmt.Sprint(r.pair.PID(0), r.pair.PID(1), s.Epoch)
			}
			read()
			before := lives()
			owner, err := v.owner(ctx)
			Expect(err).NotTo(HaveOccurred())

			// First at the owner. Then at the other node, which owns the LUN when that is read: a
			// fail-over to a copy that is damaged.
			for _, node := range []int{owner, 1 - owner} {
				name := harness.Names[node]
				healed, err := r.metric(ctx, node, harness.Healed)
				Expect(err).NotTo(HaveOccurred())
				at, err := places(v.image(node), content)
				Expect(err).NotTo(HaveOccurred())
				damaged := []int{0, 1, 200, 255, 256, len(content)/sumBlock - 1}
				for _, n := range damaged {
					Expect(flip(v.image(node), at[n])).To(Succeed())
				}
				_, err = places(v.image(node), content)
				Expect(err).To(MatchError(ContainSubstring("has %d of the file's %d", len(at)-len(damaged), len(at))))
				if node != owner {
					Expect(v.move(ctx, node)).To(Succeed())
					v.settled(ctx)
				}
				read()
				now, err := r.metric(ctx, node, harness.Healed)
				Expect(err).NotTo(HaveOccurred())
				Expect(now-healed).To(BeNumerically(">=", len(damaged)), "node %s has not healed: what was read came from somewhere else", name)
				again, err := places(v.image(node), content)
				Expect(err).NotTo(HaveOccurred(), "the image of node %s", name)
				Expect(again).To(Equal(at))
			}

			Expect(w.sh(ctx, `dmesg | grep -iE 'i/o error|medium error|critical|corrupt|shutdown|aborting'; true`)).To(BeEmpty())
			Expect(w.complaints(ctx)).To(BeEmpty())
			Expect(lives()).To(Equal(before), "a target has ended, or was excluded")
			(&tried{volume: v, fs: fs}).clean(ctx)
			Expect(w.left(ctx)).To(BeEmpty())
		}, NodeTimeout(5*time.Minute))
	}
})
