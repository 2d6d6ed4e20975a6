package striped

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// writer writes at random to a device, and knows what it has to read as.
type writer struct {
	*rig
	f     *os.File
	rnd   *rand.Rand
	fill  *rand.ChaCha8
	buf   []byte
	model []byte
}

func (r *rig) writer(f *os.File) *writer {
	return &writer{rig: r, f: f, rnd: rand.New(rand.NewPCG(1, 1)), fill: rand.NewChaCha8([32]byte{1}), buf: r.pages(mib), model: make([]byte, leg*layout.Count)}
}

// write is one request of up to 1 MiB, which has parts in up to all legs.
func (w *writer) write() {
	w.Helper()
	n := (1 + w.rnd.Int64N(mib/4096)) * 4096
	off := w.rnd.Int64N((int64(len(w.model))-n)/4096+1) * 4096
	_, _ = w.fill.Read(w.buf[:n])
	if _, err := w.f.WriteAt(w.buf[:n], off); err != nil {
		w.Fatalf("write %d bytes at %d: %v", n, off, err)
	}
	copy(w.model[off:], w.buf[:n])
}

func (w *writer) verify() {
	w.Helper()
	for off := 0; off < len(w.model); off += mib {
		if _, err := w.f.ReadAt(w.buf, int64(off)); err != nil {
			w.Fatalf("read at %d: %v", off, err)
		}
		if !bytes.Equal(w.buf, w.model[off:off+mib]) {
			w.Fatalf("the MiB at %d is not what was written", off)
		}
	}
}

// A volume over four LUNs of both nodes is one device. Its bytes are in the images as the layout
// says, at both nodes, it survives the owner of half of its LUNs, and it grows with the last of
// its LUNs.
func TestStripedVolume(t *testing.T) {
	r := newRig(t)
	f := r.open()
	st, err := r.attacher.Status(r.ctx, r.volume.VolumeID)
	if err != nil || st.Size != leg*int64(layout.Count) || len(st.Paths) != 2*layout.Count || st.Paths[7].Leg != 3 {
		t.Fatalf("%+v, %v", st, err)
	}
	w := r.writer(f)
	for range 200 {
		w.write()
	}
	w.verify()
	r.must(f.Sync())
	var images [2][][]byte
	for node := range images {
		for lun := range layout.Count {
			images[node] = append(images[node], r.image(node, lun))
		}
	}
	for p := range layout.Parts(0, int64(len(w.model))) {
		for node := range images {
			if !bytes.Equal(images[node][p.Leg][p.Off:p.Off+p.Len], w.model[p.At:p.At+p.Len]) {
				t.Fatalf("node %s: the stripe at %d of the volume is not at %d of LUN %d", harness.Names[node], p.At, p.Off, p.Leg)
			}
		}
	}

	r.must(r.pair.Kill(0))
	for begun := time.Now(); time.Since(begun) < 3*time.Second; {
		w.write()
	}
	r.must(r.pair.StartNode(0))
	for begun := time.Now(); time.Since(begun) < time.Second; { // while it is resynced
		w.write()
	}
	r.must(r.pair.WaitInSync(r.ctx))
	w.verify()

	for i, id := range r.luns {
		_, err := r.client.ExpandLUN(r.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 2 * leg})
		r.must(err)
		size, err := r.attacher.Resize(r.ctx, r.volume.VolumeID)
		if want := leg * int64(layout.Count) * int64(1+(i+1)/layout.Count); err != nil || size != want {
			t.Errorf("with %d LUNs expanded: %d bytes, %v", i+1, size, err)
		}
	}
	if n, err := r.attacher.LUNs(); n != layout.Count || err != nil {
		t.Errorf("%d LUNs, %v", n, err)
	}
	w.model = append(w.model, make([]byte, len(w.model))...)
	for range 50 {
		w.write()
	}
	w.verify()

	r.must(f.Close())
	r.must(r.attacher.Detach(r.ctx, r.volume.VolumeID))
	again := r.open()
	w.f = again
	w.verify()
	r.must(again.Close())
	r.must(r.attacher.Detach(r.ctx, r.volume.VolumeID))
}

// All legs or none: a volume of which the target lacks a LUN, or shows another one, is not
// attached, and nothing is left of the attempt.
func TestLegThatIsMissingOrAnother(t *testing.T) {
	r := newRig(t)
	refused := func(why, says string, a attach.Attachment) {
		t.Helper()
		_, err := r.attacher.Attach(r.ctx, a)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", why, err)
		}
		if left, err := r.attacher.Attached(); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", why, left, err)
		}
	}
	swapped := r.volume
	swapped.Legs = slices.Clone(r.volume.Legs)
	swapped.Legs[1].WWID, swapped.Legs[2].WWID = swapped.Legs[2].WWID, swapped.Legs[1].WWID
	refused("two LUNs are each other", "leg 1", swapped)
	r.unmap(2)
	refused("a LUN is missing", "leg 2", r.volume)
	r.volume.Legs = nil
	r.publish()
	r.must(r.open().Close())
}

// A volume of which one LUN is taken away is lost as a whole, and says so.
func TestLegIsTakenAway(t *testing.T) {
	r := newRig(t)
	f := r.open()
	w := r.writer(f)
	w.write()
	r.unmap(3)
	limit, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	r.must(harness.Wait(limit, "the volume says that a LUN is missing", func() (bool, string) {
		st, err := r.attacher.Status(r.ctx, r.volume.VolumeID)
		return err == nil && st.NoUnit, "it does not"
	}))
	if _, err := f.WriteAt(w.buf, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("a write to all legs: %v", err)
	}
	r.must(f.Close())
	r.must(r.attacher.Purge(r.ctx, r.volume.VolumeID))
}
