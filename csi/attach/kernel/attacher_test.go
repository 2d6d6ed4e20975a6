package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

const (
	wwid1 = "602474d9192a9c48cc88f401fcf5b7ab"
	wwid2 = "602474d4fb5f19be4b3457c7d29dc8b0"
)

func attachment(volume string, generation uint64, lun uint16, wwid string) attach.Attachment {
	return attach.Attachment{VolumeID: volume, Generation: generation, HostIQN: "iqn.2026-11.storage.gemel:node.w1", TargetIQN: "iqn.2026-11.storage.gemel:demo.p0",
		Portals: []string{"10.0.1.1:3260", "10.0.2.1:3260"}, LUN: lun, WWID: wwid}
}

func attacherOn(t *testing.T, f *fake, dir string) *Attacher {
	t.Helper()
	a, err := newAttacher(Config{Dir: dir}, f)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func setup(t *testing.T) (*fake, *Attacher, attach.Attachment) {
	f := newFake(t)
	want := attachment("v1", 5, 3, wwid1)
	f.show(want, 1<<30)
	return f, attacherOn(t, f, t.TempDir()), want
}

func (f *fake) healthy(a attach.Attachment) error {
	u := must(f.t, a)
	m := f.mapOf(u.id)
	if n := 2 * u.count(); m == nil || len(m.slaves) != n || len(f.sessions) != n || len(f.disksOf(u.id)) != n {
		return fmt.Errorf("sessions %v, disks %v, maps %v", f.sessions, f.disks, f.maps)
	}
	for _, s := range f.sessions {
		if s.initiator != u.initiator {
			return fmt.Errorf("session as %s", s.initiator)
		}
	}
	return nil
}

func count(steps []step, v verb) (n int) {
	for _, s := range steps {
		if s.do == v {
			n++
		}
	}
	return n
}

func TestAttachDetach(t *testing.T) {
	f, a, want := setup(t)
	ctx := t.Context()
	device, err := a.Attach(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	n := len(f.steps)
	if again, err := a.Attach(ctx, want); err != nil || again != device || len(f.steps) != n {
		t.Fatal(again, err, f.steps[n:])
	}
	if ids, err := a.Attached(); err != nil || !slices.Equal(ids, []string{"v1"}) {
		t.Fatal(ids, err)
	}
	if n, err := a.LUNs(); n != 1 || err != nil {
		t.Fatalf("%d LUNs, %v", n, err)
	}
	st, err := a.Status(ctx, "v1")
	if err != nil || st.Device != device || st.Size != 1<<30 || len(st.Paths) != 2 || !st.Paths[0].Connected || !st.Paths[1].Connected {
		t.Fatalf("%+v %v", st, err)
	}
	for range 2 {
		if err := a.Detach(ctx, "v1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Status(ctx, "v1"); !errors.Is(err, attach.ErrNotAttached) {
		t.Fatal(err)
	}
}

// A crash at every step, before it and after it: the same call again reaches the goal, and so does
// a detach.
func TestCrashAtEveryStep(t *testing.T) {
	crashAtEveryStep(t, attachment("v1", 5, 3, wwid1), attachment("v1", 6, 9, wwid1), (*fake).healthy)
}

func crashAtEveryStep(t *testing.T, want, next attach.Attachment, whole func(*fake, attach.Attachment) error) {
	type call struct {
		name string
		do   func(*Attacher) error
	}
	put := func(w attach.Attachment) call {
		return call{fmt.Sprintf("attach %d", w.Generation), func(a *Attacher) error { _, err := a.Attach(context.Background(), w); return err }}
	}
	detach := call{"detach", func(a *Attacher) error { return a.Detach(context.Background(), "v1") }}
	for _, c := range []struct {
		before []call
		crash  call
		after  call
		has    *attach.Attachment
	}{
		{nil, put(want), put(want), &want},
		{nil, put(want), detach, nil},
		{nil, put(want), put(next), &next},
		{[]call{put(want)}, detach, detach, nil},
		{[]call{put(want)}, detach, put(want), &want},
		{[]call{put(want)}, put(next), put(next), &next}, // an older generation is torn down first
		{[]call{put(want)}, put(next), detach, nil},
	} {
		for at := 0; ; at++ {
			crashed := false
			for _, before := range []bool{true, false} {
				f, dir := newFake(t), t.TempDir()
				f.show(want, 1<<30)
				f.show(next, 1<<30)
				for _, b := range c.before {
					if err := b.do(attacherOn(t, f, dir)); err != nil {
						t.Fatal(b.name, err)
					}
				}
				f.dieAt, f.dieBefore = len(f.steps)+at, before
				err := c.crash.do(attacherOn(t, f, dir))
				if crashed = f.dead; crashed != (err != nil) {
					t.Fatal(c.crash.name, crashed, err)
				}
				f.dead, f.dieAt = false, -1
				if err := c.after.do(attacherOn(t, f, dir)); err != nil {
					t.Fatalf("%s killed at step %d (before: %v, %s), then %s: %v", c.crash.name, at, before, f.steps[len(f.steps)-1], c.after.name, err)
				}
				if c.has != nil {
					if err := whole(f, *c.has); err != nil {
						t.Fatalf("%s killed at step %d (before: %v), then %s: %v", c.crash.name, at, before, c.after.name, err)
					}
					if err := detach.do(attacherOn(t, f, dir)); err != nil {
						t.Fatal(err)
					}
				}
				if err := f.clean(); err != nil {
					t.Fatalf("%s killed at step %d (before: %v), then %s: %v", c.crash.name, at, before, c.after.name, err)
				}
				if left, _ := os.ReadDir(dir); len(left) > 0 {
					t.Fatal(left)
				}
			}
			if !crashed {
				break
			}
		}
	}
}

func TestInvalid(t *testing.T) {
	f, a, want := setup(t)
	for name, spoil := range map[string]func(*attach.Attachment){
		"portal name":  func(a *attach.Attachment) { a.Portals = []string{"storage.example:3260"} },
		"no port":      func(a *attach.Attachment) { a.Portals = []string{"10.0.0.1"} },
		"twice":        func(a *attach.Attachment) { a.Portals = []string{"10.0.0.1:3260", "10.0.0.1:3260"} },
		"no portal":    func(a *attach.Attachment) { a.Portals = nil },
		"short WWID":   func(a *attach.Attachment) { a.WWID = a.WWID[:31] },
		"target":       func(a *attach.Attachment) { a.TargetIQN = "iqn.x/../../y" },
		"host":         func(a *attach.Attachment) { a.HostIQN = "" },
		"LUN":          func(a *attach.Attachment) { a.LUN = attach.MaxLUN + 1 },
		"volume":       func(a *attach.Attachment) { a.VolumeID = "../v1" },
		"secret lines": func(a *attach.Attachment) { a.Auth = &attach.CHAP{User: "u", Secret: "a\nnode.startup = automatic"} },
	} {
		w := want
		spoil(&w)
		if _, err := a.Attach(t.Context(), w); !errors.Is(err, attach.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(f.steps) > 0 {
		t.Error(f.steps)
	}
}
