package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

const legSize = 1 << 30

// stripedAttachment is of a volume over three LUNs.
func stripedAttachment(generation uint64, luns ...uint16) attach.Attachment {
	a := attachment("v1", generation, 0, "")
	a.Stripe = 256 << 10
	for i, l := range luns {
		a.Legs = append(a.Legs, attach.Leg{LUN: l, WWID: fmt.Sprintf("%s%d", wwid1[:31], i)})
	}
	return a
}

func setupStriped(t *testing.T) (*fake, *Attacher, attach.Attachment) {
	t.Helper()
	f := newFake(t)
	want := stripedAttachment(5, 3, 4, 5)
	f.show(want, legSize)
	return f, attacherOn(t, f, t.TempDir()), want
}

func attachStriped(t *testing.T) (*fake, *Attacher, attach.Attachment) {
	t.Helper()
	f, a, want := setupStriped(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	return f, a, want
}

// A striped volume is one device over the maps of all its LUNs, and is detached from the top.
func TestStripedVolume(t *testing.T) {
	f, a, want := attachStriped(t)
	n := len(f.steps)
	device, err := a.Attach(t.Context(), want)
	if err != nil || len(f.steps) != n || device != "/dev/"+f.stripes[0].kernel {
		t.Fatal(device, err, f.steps[n:])
	}
	if n, err := a.LUNs(); n != 3 || err != nil {
		t.Errorf("%d LUNs, %v", n, err)
	}
	st, err := a.Status(t.Context(), "v1")
	if err != nil || st.Device != device || st.Size != 3*legSize || len(st.Paths) != 6 || !st.Serves() {
		t.Fatalf("%+v, %v", st, err)
	}
	for i, p := range st.Paths {
		if p.Leg != i/2 || !p.Connected {
			t.Errorf("%+v", p)
		}
	}
	all, err := a.Paths(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Paths) != 6 || all[0].Paths[5].Leg != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
	order := []verb{}
	for _, s := range f.steps[n:] {
		order = append(order, s.do)
	}
	if slices.Index(order, doDropStripes) > slices.Index(order, doFlush) {
		t.Errorf("%v", order)
	}
}

func TestCrashAtEveryStepOfStripedVolume(t *testing.T) {
	crashAtEveryStep(t, stripedAttachment(5, 3, 4, 5), stripedAttachment(6, 9, 8, 7), (*fake).wholeStripes)
}

// Hazard 31: a LUN is missing. Nothing is made of the others, and nothing of them is left.
func TestHazard31MissingLeg(t *testing.T) {
	f, a, want := setupStriped(t)
	for _, shown := range f.shown {
		delete(shown, 4)
	}
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrFailed) || !strings.Contains(err.Error(), "leg 1") || !strings.Contains(err.Error(), "shows LUN 4") {
		t.Fatal(err)
	}
	if n := count(f.steps, doMakeStripes); n != 0 {
		t.Errorf("made %d times", n)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
	// One that is another LUN is missing, too.
	f, a, want = setupStriped(t)
	other, _ := parseNAA(wwid2)
	for _, shown := range f.shown {
		shown[5] = other
	}
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrFailed) || !strings.Contains(err.Error(), "leg 2") || !strings.Contains(err.Error(), "is another device") {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazard 32: a striped map is there that is made of other devices, in another order, with stripes
// of another size, or has no table. Before an attachment it goes; later it is reported, and the
// processes that use it are left alone.
func TestHazard32WrongStripes(t *testing.T) {
	for what, change := range map[string]func(f *fake, m *dmMap){
		"another order": func(f *fake, m *dmMap) {
			p := strings.Fields(m.table)
			p[5], p[7] = p[7], p[5]
			f.load(m, strings.Join(p, " "))
		},
		"other stripes": func(f *fake, m *dmMap) { f.load(m, strings.Replace(m.table, " 512 ", " 128 ", 1)) },
		"no table":      func(f *fake, m *dmMap) { f.release(m) },
	} {
		f, a, want := attachStriped(t)
		change(f, &f.stripes[0])
		if _, err := a.Status(t.Context(), "v1"); what != "no table" && !errors.Is(err, attach.ErrFailed) {
			t.Errorf("%s: status: %v", what, err)
		}
		f.stripes[0].mounts = []string{"/mnt/x"}
		n := len(f.steps)
		if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrFailed) || !strings.Contains(err.Error(), "/mnt/x") || len(f.steps) != n {
			t.Errorf("%s, in use: %v, %v", what, err, f.steps[n:])
		}
		f.stripes[0].mounts = nil
		if _, err := a.Attach(t.Context(), want); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := f.wholeStripes(want); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		// Its record is lost: who uses it is cut off, as with one LUN.
		change(f, &f.stripes[0])
		f.stripes[0].mounts = []string{"/mnt/x"}
		a = attacherOn(t, f, t.TempDir())
		if _, err := a.Attach(t.Context(), want); err != nil {
			t.Errorf("%s, without a record: %v", what, err)
		}
		if err := f.wholeStripes(want); err != nil {
			t.Errorf("%s, without a record: %v", what, err)
		}
	}
}

// Hazard 33: dmsetup is killed between its calls to the kernel.
func TestHazard33TornStripes(t *testing.T) {
	f, a, want := setupStriped(t)
	f.torn = true
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	f.show(want, 2*legSize)
	f.torn = true
	size, err := a.Resize(t.Context(), "v1")
	if err != nil || size != 6*legSize {
		t.Fatal(size, err)
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	f.stripes[0].suspended = true
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazard 23: the device grows when all LUNs have grown, and never shrinks.
func TestHazard23StripesGrow(t *testing.T) {
	f, a, want := attachStriped(t)
	u := must(t, want)
	f.sizes[u.legs[0].id], f.sizes[u.legs[2].id] = 2*legSize, 2*legSize
	if size, err := a.Resize(t.Context(), "v1"); err != nil || size != 3*legSize {
		t.Fatal(size, err)
	}
	f.sizes[u.legs[1].id] = 2*legSize + 4096
	if size, err := a.Resize(t.Context(), "v1"); err != nil || size != 6*legSize {
		t.Fatal(size, err)
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	// Another LUN, or one that was made smaller.
	f.sizes[u.legs[1].id] = legSize
	if _, err := a.Resize(t.Context(), "v1"); !errors.Is(err, attach.ErrFailed) {
		t.Fatal(err)
	}
}

// Hazard 34: a LUN that has no path any more hinders neither a detach nor its repair.
func TestHazard34DeadLeg(t *testing.T) {
	dead := func(f *fake, u unit) {
		for _, d := range f.disksOf(u.legs[1].id) {
			f.remove(d)
		}
	}
	f, a, want := attachStriped(t)
	dead(f, must(t, want))
	if st, err := a.Status(t.Context(), "v1"); !errors.Is(err, attach.ErrFailed) || st.Serves() {
		t.Errorf("%+v, %v", st, err)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
	f, a, want = attachStriped(t)
	dead(f, must(t, want))
	f.stripes[0].mounts = []string{"/mnt/x"}
	h := newHealer(a)
	n := len(f.steps)
	h.pass(t.Context(), time.Now())
	if err := f.wholeStripes(want); err != nil {
		t.Fatalf("%v: %v", err, f.steps[n:])
	}
	for _, s := range f.steps[n:] {
		if s.do != doScan && s.do != doAddPath && s.do != doAwaitMap && s.do != doRescan {
			t.Errorf("healed by %q", s)
		}
	}
	// A repair of one leg goes on while another cannot be repaired.
	dead(f, must(t, want))
	for _, shown := range f.shown {
		delete(shown, 4)
	}
	last := f.mapOf(must(t, want).legs[2].id)
	last.slaves = last.slaves[:1]
	h = newHealer(a)
	h.pass(t.Context(), time.Now())
	if m := f.mapOf(last.id); len(m.slaves) != 2 {
		t.Errorf("%+v", m)
	}
}

// Hazards 11, 12 and 26: who uses the device is left alone by a detach, and cut off by force, after
// the paths of all LUNs.
func TestHazard26StripesInUse(t *testing.T) {
	f, a, want := attachStriped(t)
	f.stripes[0].mounts = []string{"/mnt/x"}
	n := len(f.steps)
	if err := a.Detach(t.Context(), "v1"); !errors.Is(err, attach.ErrBusy) || len(f.steps) != n {
		t.Fatal(err, f.steps[n:])
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	if err := a.Purge(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
	for _, id := range must(t, want).legs {
		if !slices.ContainsFunc(f.steps[n:], func(s step) bool { return s.do == doFail && s.dm.id == id.id }) {
			t.Errorf("%v goes on queueing", id.id)
		}
	}
	f, a, _ = attachStriped(t)
	f.open = true
	if err := a.Detach(t.Context(), "v1"); !errors.Is(err, attach.ErrBusy) {
		t.Fatal(err)
	}
	if n := count(f.steps, doFlush); n != 0 {
		t.Error("a LUN was flushed below a device that is open")
	}
}

// Hazard 35: somebody uses a LUN of the volume by itself before the volume is made of it.
func TestHazard35ClaimedLeg(t *testing.T) {
	f, a, want := setupStriped(t)
	f.before = func(s step) {
		if s.do == doMakeStripes {
			t.Error("made of a LUN that LVM has")
		}
		if m := f.mapOf(must(t, want).legs[2].id); m != nil && s.do != doFlush {
			m.holders = []string{"dm-77"}
		}
	}
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrBusy) || !strings.Contains(err.Error(), "leg 2") || !strings.Contains(err.Error(), "/dev/dm-77") {
		t.Fatal(err)
	}
	f.before = nil
	f.mapOf(must(t, want).legs[2].id).holders = nil
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
}

// No LUN waits for the sessions that another one has waited for.
func TestStripedVolumeWaitsOnceForSessions(t *testing.T) {
	f, a, want := attachStriped(t)
	for i := range f.sessions {
		f.sessions[i].connected = false
	}
	f.disks = nil
	for i := range f.maps {
		f.maps[i].slaves = nil
	}
	n := len(f.steps)
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrFailed) {
		t.Fatal(err)
	}
	if n := count(f.steps[n:], doAwaitSession); n != 1 {
		t.Errorf("waited %d times", n)
	}
}
