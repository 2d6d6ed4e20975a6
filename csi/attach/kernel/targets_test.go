package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// overPairs is a volume over four LUNs at two targets, with the same LUN numbers at both.
func overPairs(generation uint64, first, second uint16) attach.Attachment {
	a := stripedAttachment(generation, first, first, second, second)
	a.Pair = "p0"
	a.Others = []attach.Target{{IQN: "iqn.2026-11.storage.gemel:demo.p1", Portals: []string{"10.0.3.1:3260", "10.0.4.1:3260"}, Pair: "p1"}}
	a.Legs[1].Target, a.Legs[3].Target = 1, 1
	return a
}

func portal(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// Each LUN is looked for at its own target, and what is removed is that of both.
func TestStripedVolumeAtTwoTargets(t *testing.T) {
	f, want := newFake(t), overPairs(5, 3, 4)
	f.show(want, legSize)
	a := attacherOn(t, f, t.TempDir())
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.wholeStripes(want); err != nil || len(f.sessions) != 4 || len(f.nodes) != 4 {
		t.Fatal(err, f.sessions, f.nodes)
	}
	st, err := a.Status(t.Context(), "v1")
	if err != nil || len(st.Paths) != 8 || !st.Serves() {
		t.Fatalf("%+v, %v", st, err)
	}
	for i, p := range st.Paths {
		if first := strings.HasPrefix(p.Portal, "10.0.1.") || strings.HasPrefix(p.Portal, "10.0.2."); p.Leg != i/2 || first != (want.Legs[p.Leg].Target == 0) {
			t.Errorf("%+v", p)
		}
	}
	// A volume at one of the targets keeps its sessions.
	one := attachment("v2", 1, 9, wwid2)
	one.TargetIQN, one.Portals = want.Others[0].IQN, want.Others[0].Portals
	f.show(one, legSize)
	if _, err := a.Attach(t.Context(), one); err != nil || len(f.sessions) != 4 {
		t.Fatal(err, f.sessions)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	for _, s := range f.sessions {
		if string(s.target) != one.TargetIQN {
			t.Errorf("left: %v", s)
		}
	}
	if len(f.sessions) != 2 || len(f.nodes) != 2 || len(f.maps) != 1 {
		t.Errorf("%v, %v, %v", f.sessions, f.nodes, f.maps)
	}
	if err := a.Detach(t.Context(), "v2"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
	// Alone at both, it leaves nothing at either.
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Error(err)
	}
}

func TestCrashAtEveryStepAtTwoTargets(t *testing.T) {
	crashAtEveryStep(t, overPairs(5, 3, 4), overPairs(6, 9, 8), (*fake).wholeStripes)
}

// A target that cannot be reached: nothing is made, nothing is left, and the error says which.
func TestOneOfTwoTargetsAway(t *testing.T) {
	f, want := newFake(t), overPairs(5, 3, 4)
	f.show(want, legSize)
	f.down[portal("10.0.3.1:3260")], f.down[portal("10.0.4.1:3260")] = true, true
	a := attacherOn(t, f, t.TempDir())
	_, err := a.Attach(t.Context(), want)
	if !errors.Is(err, attach.ErrFailed) || !strings.Contains(err.Error(), "leg 1") || !strings.Contains(err.Error(), "demo.p1") {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil || count(f.steps, doMakeStripes) != 0 {
		t.Fatal(err, f.steps)
	}
	// With one node of it, the volume is there, and the healer brings the other path.
	f.down[portal("10.0.4.1:3260")] = false
	a = attacherOn(t, f, t.TempDir())
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	f.down[portal("10.0.3.1:3260")] = false
	h := newHealer(a)
	h.ready = func(context.Context) error { return nil }
	for _, p := range []string{"10.0.3.1:3260"} {
		a.mu.Lock()
		delete(a.logins, portal(p))
		a.mu.Unlock()
	}
	h.pass(t.Context(), time.Now())
	if err := f.wholeStripes(want); err != nil {
		t.Error(err)
	}
}

// Each target has credentials of its own, and only those that are refused are renewed.
func TestCredentialsOfTwoTargets(t *testing.T) {
	f, want := newFake(t), overPairs(5, 3, 4)
	f.show(want, legSize)
	a := attacherOn(t, f, t.TempDir())
	f.wants = map[netip.AddrPort]string{}
	for i, x := range want.Targets() {
		secret := []string{"secret of p0", "secret of p1"}[i]
		want.SetCredentials(i, &attach.CHAP{User: "host", Secret: secret}, nil)
		for _, p := range x.Portals {
			f.wants[portal(p)] = secret
		}
	}
	f.wants[portal("10.0.4.1:3260")] = "newer"
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	refused, err := a.Refused(t.Context())
	if err != nil || !slices.Equal(refused, []attach.Refusal{{VolumeID: "v1", Pair: "p1"}}) {
		t.Fatal(refused, err)
	}
	before := slices.Clone(f.nodes)
	f.wants[portal("10.0.3.1:3260")] = "newer"
	if err := a.Renew(t.Context(), refused[0], &attach.CHAP{User: "host", Secret: "newer"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	for _, n := range before {
		if same := slices.Contains(f.nodes, n); same != (string(n.target) == want.TargetIQN) {
			t.Errorf("the node record of %s at %s is unchanged: %v", n.target, n.portal, same)
		}
	}
	r, err := a.load("v1")
	if err != nil || !r.CHAP || r.Version != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Two volumes that name the same targets the other way round do not wait for each other.
func TestTargetsAreLockedInOneOrder(t *testing.T) {
	f, want := newFake(t), overPairs(5, 3, 4)
	back := overPairs(6, 13, 14)
	back.VolumeID = "v2"
	back.TargetIQN, back.Others[0].IQN = back.Others[0].IQN, back.TargetIQN
	back.Portals, back.Others[0].Portals = back.Others[0].Portals, back.Portals
	for i := range back.Legs {
		back.Legs[i].WWID = wwid2[:31] + back.Legs[i].WWID[31:]
	}
	f.show(want, legSize)
	f.show(back, legSize)
	a := attacherOn(t, f, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20 {
			var both sync.WaitGroup
			for _, x := range []attach.Attachment{want, back} {
				both.Go(func() {
					if _, err := a.Attach(ctx, x); err != nil {
						t.Error(err)
					}
					if err := a.Detach(ctx, x.VolumeID); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("two volumes wait for each other's target")
	}
	if err := f.clean(); err != nil {
		t.Error(err)
	}
}

func TestWrongTargetsAreRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*attach.Attachment)
		says   string
	}{
		{func(a *attach.Attachment) { a.Others[0].IQN = a.TargetIQN }, "otherTargets: iqn.2026-11.storage.gemel:demo.p0 is named twice"},
		{func(a *attach.Attachment) { a.Others[0].IQN = "p1" }, `otherTargets: "p1"`},
		{func(a *attach.Attachment) { a.Others[0].Portals = a.Portals[:1] }, "otherTargets: 10.0.1.1:3260 is named twice"},
		{func(a *attach.Attachment) { a.Others[0].Portals = nil }, "otherTargets: none"},
		{func(a *attach.Attachment) { a.Legs[3].Target = 2 }, "legsAt: LUN 4 is at target 2, and there are 2"},
		{func(a *attach.Attachment) { a.Legs[3].Target = 0 }, "LUN 4"},
		{func(a *attach.Attachment) { a.Others[0].Auth = &attach.CHAP{User: "u\n", Secret: "s"} }, "secrets"},
	} {
		a := overPairs(5, 3, 4)
		c.change(&a)
		if _, err := parse(a); !errors.Is(err, attach.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v does not say %q", err, c.says)
		}
	}
}
