package kind

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// sumBlock is what one checksum is of.
const sumBlock = 4096

// markedFile is content of which each block begins with a text that is nowhere else, so that it is
// found in an image.
func markedFile(blocks int) (content []byte, mark string) {
	content = make([]byte, blocks*sumBlock)
	_, _ = rand.Read(content) // never fails
	mark = "e2e-" + rand.Text() + "-"
	for i := range blocks {
		copy(content[i*sumBlock:], fmt.Sprintf("%s%05d", mark, i))
	}
	return content, mark
}

// image is the file of a LUN on a worker's disk, past the target that serves it.
type image struct{ worker, path string }

// imageOf is a node's copy of a LUN.
func imageOf(ctx context.Context, node, lun string) image {
	GinkgoHelper()
	worker, id := targetWorker(ctx, node), field(ctx, "logicalunit", lun, "", "{.spec.placement.uuid}")
	path := on(ctx, worker, "find /var/lib/gemel-backing -path '*/volumes/default/luns/"+id+".img'")
	Expect(strings.Fields(path)).To(HaveLen(1), "the images of "+id+" on "+worker)
	return image{worker, path}
}

// places finds the blocks of a marked file, by number.
func (m image) places(ctx context.Context, mark string, blocks int) map[int]int64 {
	GinkgoHelper()
	at := map[int]int64{}
	// -z: a hole is many short lines and not one that fills the memory.
	for line := range strings.Lines(on(ctx, m.worker, "grep -zaboE '"+mark+"[0-9]{5}' "+m.path+" | tr '\\0' '\\n'")) {
		off, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		place, err := strconv.ParseInt(off, 10, 64)
		Expect(err).NotTo(HaveOccurred(), line)
		n, err := strconv.Atoi(strings.TrimPrefix(text, mark))
		Expect(err).NotTo(HaveOccurred(), line)
		Expect(at).NotTo(HaveKey(n), "twice in the image")
		Expect(place%sumBlock).To(BeZero(), line)
		at[n] = place
	}
	Expect(at).To(HaveLen(blocks), "blocks of the file that are in the image")
	return at
}

func (m image) read(ctx context.Context, at int64) []byte {
	GinkgoHelper()
	b, err := base64.StdEncoding.DecodeString(on(ctx, m.worker, fmt.Sprintf("dd if=%s bs=%d skip=%d count=1 status=none | base64 -w0", m.path, sumBlock, at/sumBlock)))
	Expect(err).NotTo(HaveOccurred())
	return b
}

// flip changes some bits of a block without an error, as a disk does.
func (m image) flip(ctx context.Context, at int64) {
	GinkgoHelper()
	b := m.read(ctx, at)
	Expect(b).To(HaveLen(sumBlock))
	for _, bit := range []int{7, 8*1000 + 3, 8*sumBlock - 1} {
		b[bit/8] ^= 1 << (bit % 8)
	}
	on(ctx, m.worker, fmt.Sprintf("echo %s | base64 -d | dd of=%s bs=%d seek=%d conv=notrunc,fsync status=none",
		base64.StdEncoding.EncodeToString(b), m.path, sumBlock, at/sumBlock))
	Expect(m.read(ctx, at)).To(Equal(b))
}

// metric is one sample of the metrics of a target.
func metric(ctx context.Context, node, sample string) float64 {
	GinkgoHelper()
	answer := kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+namespace+"/pods/"+targetPod(node)+":9260/proxy/metrics")
	v, err := harness.Metric(answer, sample)
	Expect(err).NotTo(HaveOccurred())
	return v
}

var _ = Describe("bits that a disk flips under a pod", func() {
	It("are healed, and the pod reads what it wrote", func(ctx context.Context) {
		ns := volume(ctx)
		pod(ctx, ns, "app", "data", bystander(ctx), "sleep infinity", false)
		running(ctx, ns, "app")
		const blocks = 1024
		content, mark := markedFile(blocks)
		wrote := fmt.Sprintf("%x", sha256.Sum256(content))
		_, err := run(ctx, string(content), "kubectl", "exec", "-i", "-n", ns, "app", "--", "bash", "-c", "cat >/data/file && sync /data/file")
		Expect(err).NotTo(HaveOccurred())
		// Past the pod's own cache, to the target.
		read := func() string {
			GinkgoHelper()
			return inPod(ctx, ns, "app", "set -o pipefail; dd if=/data/file iflag=direct bs=256k status=none | sha256sum | cut -d' ' -f1")
		}
		Expect(read()).To(Equal(wrote))

		lun, owner := lunOf(ctx, ns, "data"), ownerOf(ctx, ns, "data")
		partner := otherNode(owner)
		lives := func() string { // of the pod, the targets and the pair: what an error would have changed
			s := field(ctx, "pod", "app", ns, "{.metadata.uid} {.status.phase} {.status.containerStatuses[*].restartCount}")
			for _, n := range []string{"a", "b"} {
				s += " " + field(ctx, "pod", targetPod(n), namespace, "{.metadata.uid} {.status.containerStatuses[*].restartCount}")
			}
			return s + " " + field(ctx, "targetpair", pair, "", "{.status.epoch}") + " " + field(ctx, "logicalunit", lun, "", "{.status.owner}")
		}
		before := lives()
		Expect(before).NotTo(ContainSubstring("error"))
		damaged := []int{0, 1, 300, 511, 512, blocks - 1}
		good := func(n int) []byte { return content[n*sumBlock : (n+1)*sumBlock] }
		damage := func(m image) map[int]int64 {
			GinkgoHelper()
			at := m.places(ctx, mark, blocks)
			for _, n := range damaged {
				Expect(bytes.Equal(m.read(ctx, at[n]), good(n))).To(BeTrue(), "block %d before the damage", n)
				m.flip(ctx, at[n])
			}
			return at
		}
		whole := func(m image, at map[int]int64) {
			GinkgoHelper()
			for _, n := range damaged {
				Expect(bytes.Equal(m.read(ctx, at[n]), good(n))).To(BeTrue(), "block %d in %s on %s", n, m.path, m.worker)
			}
		}

		By("flipping bits at the owner, " + owner)
		healed := metric(ctx, owner, harness.Healed)
		own := imageOf(ctx, owner, lun)
		at := damage(own)
		Expect(read()).To(Equal(wrote))
		Expect(metric(ctx, owner, harness.Healed)-healed).To(BeNumerically(">=", len(damaged)), "no block was healed: what the pod has read came from somewhere else")
		whole(own, at)

		By("flipping bits at the partner, " + partner + ", which no host reads")
		other := imageOf(ctx, partner, lun)
		at = damage(other)
		Expect(read()).To(Equal(wrote))
		ranges := map[int64]bool{} // of 1 MiB, as a scrub counts
		for _, n := range damaged {
			ranges[at[n]>>20] = true
		}
		out, err := run(ctx, "", "kubectl", "gemel", "scrub", pair, "--wait")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("%[1]d ranges differed, %[1]d repaired", len(ranges)))
		whole(other, at)
		whole(own, at)

		Expect(read()).To(Equal(wrote))
		Expect(lives()).To(Equal(before), "a process has ended, the LUN has moved or a node was excluded: for the damage, or because the machine starved it")
		inSync(ctx)
	}, NodeTimeout(8*time.Minute))
})
