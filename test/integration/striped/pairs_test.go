package striped

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/pairclient"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// second moves every second leg of the volume to another pair, which it starts.
func (r *rig) second() (*harness.Pair, []string) {
	r.Helper()
	p, err := harness.New(harness.Options{Dir: r.lab.Path("second"), Binary: r.target, Name: "p1"})
	r.must(err)
	r.Cleanup(func() {
		r.purge() // first, as long as both pairs serve
		if err := p.Close(); err != nil {
			r.Errorf("stop of the second pair: %v", err)
		}
	})
	r.must(p.Start(r.ctx))
	c, err := pairclient.New(pairclient.Config{Endpoints: p.Control[:], Patience: 3 * time.Second})
	r.must(err)
	r.Cleanup(func() { _ = c.Close() })
	ids := make([]string, layout.Count)
	other := attach.Target{}
	for i := 1; i < layout.Count; i += 2 {
		ids[i] = uuid.NewString()
		_, err := c.CreateLUN(r.ctx, &targetv1.CreateLUNRequest{Uuid: ids[i], Name: ids[i], SizeBytes: leg, PreferredNode: harness.Names[i/2]})
		r.must(err)
		m, err := c.MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: ids[i], HostIqn: host})
		r.must(err)
		other.IQN, other.Portals = m.TargetIqn, nil
		for _, x := range m.Portals {
			other.Portals = append(other.Portals, x.Address)
		}
		r.volume.Legs[i] = attach.Leg{LUN: uint16(m.Lun), WWID: m.Wwid, Target: 1}
		r.volume.Generation += m.Generation
	}
	r.volume.Others = []attach.Target{other}
	return p, ids
}

// A volume over the LUNs of two pairs is one device. Its stripes are in the images of both pairs,
// and it survives the loss of a node of each.
func TestStripedVolumeOverPairs(t *testing.T) {
	r := newRig(t)
	pair, ids := r.second()
	f := r.open()
	st, err := r.attacher.Status(r.ctx, r.volume.VolumeID)
	if err != nil || st.Size != leg*int64(layout.Count) || len(st.Paths) != 2*layout.Count || !st.Serves() {
		t.Fatalf("%+v, %v", st, err)
	}
	for _, p := range st.Paths {
		if want := r.volume.Targets()[r.volume.Legs[p.Leg].Target].Portals; p.Portal != want[0] && p.Portal != want[1] {
			t.Errorf("%+v, and not %v", p, want)
		}
	}
	w := r.writer(f)
	for range 200 {
		w.write()
	}
	w.verify()
	r.must(f.Sync())
	for node := range harness.Names {
		images := make([][]byte, layout.Count)
		for i := range images {
			if ids[i] == "" {
				images[i] = r.image(node, i)
				continue
			}
			b, err := os.ReadFile(filepath.Join(pair.State[node], "volumes", "default", "luns", ids[i]+".img"))
			r.must(err)
			images[i] = b
		}
		for p := range layout.Parts(0, int64(len(w.model))) {
			if !bytes.Equal(images[p.Leg][p.Off:p.Off+p.Len], w.model[p.At:p.At+p.Len]) {
				t.Fatalf("node %s: the stripe at %d of the volume is not at %d of LUN %d", harness.Names[node], p.At, p.Off, p.Leg)
			}
		}
	}
	for i, p := range []*harness.Pair{r.pair, pair} {
		r.must(p.Kill(i)) // node a of one, node b of the other
		for begun := time.Now(); time.Since(begun) < 3*time.Second; {
			w.write()
		}
		r.must(p.StartNode(i))
		r.must(p.WaitInSync(r.ctx))
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

// A leg that is said to be at the wrong one of two targets is another LUN there, or none: nothing
// is attached.
func TestLegAtTheWrongTarget(t *testing.T) {
	r := newRig(t)
	r.second()
	for i, says := range []string{"leg 0", "leg 1"} {
		a := r.volume
		a.Legs = append([]attach.Leg(nil), a.Legs...)
		a.Legs[i].Target = 1 - a.Legs[i].Target
		a.Legs[i].LUN += 100 // not one that the other target has
		if _, err := r.attacher.Attach(r.ctx, a); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("leg %d: %v", i, err)
		}
	}
	if left, err := r.attacher.Attached(); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
