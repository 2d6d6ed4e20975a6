package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

func withSessions(a attach.Attachment, n int) attach.Attachment { a.Sessions = n; return a }

// sids are the numbers of our sessions to the portals of an attachment, in their order.
func (f *fake) sids(a attach.Attachment) (out []int) {
	u := must(f.t, a)
	for _, p := range u.portals {
		for _, s := range f.to(u.target, p) {
			out = append(out, s.sid)
		}
	}
	return out
}

// exactly tells what is wrong with the paths of an attachment, whatever other sessions there are.
func (f *fake) exactly(a attach.Attachment) error {
	u := must(f.t, a)
	m := f.mapOf(u.id)
	want := 2 * u.count()
	if m == nil || len(m.slaves) != want || len(f.disksOf(u.id)) != want || len(u.sessions(&f.observed)) != want {
		return fmt.Errorf("%s: sessions %v, disks %v, maps %v", a.VolumeID, f.sessions, f.disks, f.maps)
	}
	for _, s := range u.sessions(&f.observed) {
		if d := f.disk(goal{unit: u}.address(s)); d == nil || !slices.Contains(m.slaves, d.name) {
			return fmt.Errorf("%s: session %d has no path, disks %v, maps %v", a.VolumeID, s.sid, f.disks, f.maps)
		}
	}
	return nil
}

// recorded tells what is wrong with the number of sessions in the node records.
func (f *fake) recorded(n int) error {
	for _, x := range f.nodes {
		if x.sessions != n {
			return fmt.Errorf("%s: %d sessions in the record, want %d", x.portal, x.sessions, n)
		}
	}
	return nil
}

func attachAll(t *testing.T, a *Attacher, all ...attach.Attachment) {
	t.Helper()
	for _, x := range all {
		if _, err := a.Attach(t.Context(), x); err != nil {
			t.Fatal(x.VolumeID, err)
		}
	}
}

// rested forgets the logins that have failed just before.
func rested(a *Attacher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.logins)
}

func healOnce(t *testing.T, a *Attacher) {
	t.Helper()
	h := newHealer(a)
	h.ready = func(context.Context) error { return nil }
	h.take() // what it reads again after a start
	h.pass(t.Context(), time.Now())
}

func TestSeveralSessions(t *testing.T) {
	f, a, want := setup(t)
	want.Sessions = 4
	attachAll(t, a, want)
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	if n := count(f.steps, doLogin); n != 2 {
		t.Errorf("%d logins", n)
	}
	n := len(f.steps)
	if attachAll(t, a, want); len(f.steps) != n {
		t.Error(f.steps[n:])
	}
	st, err := a.Status(t.Context(), "v1")
	if err != nil || len(st.Paths) != 8 || st.Attachment.SessionCount() != 4 {
		t.Fatalf("%+v, %v", st, err)
	}
	for i, p := range st.Paths {
		// All are optimized here, and I/O goes to the paths of one portal.
		if p.Session != i%4 || p.Portal != want.Portals[i/4] || !p.Connected || p.Current != (i < 4) {
			t.Errorf("%d: %+v", i, p)
		}
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashAtEveryStepOfSeveralSessions(t *testing.T) {
	one := attachment("v1", 5, 3, wwid1)
	crashAtEveryStep(t, withSessions(one, 4), withSessions(attachment("v1", 6, 9, wwid1), 3), (*fake).healthy)
	pairs := withSessions(overPairs(5, 3, 4), 2)
	crashAtEveryStep(t, pairs, withSessions(overPairs(6, 9, 8), 2), (*fake).wholeStripes)
}

// A repeated attachment with another number of sessions, killed at every step: who heals, the same
// call and a detach all end it. Another volume keeps what it needs all the time.
func TestCrashAtEveryStepOfAnotherNumber(t *testing.T) {
	want, beside := attachment("v1", 5, 3, wwid1), withSessions(attachment("v2", 6, 4, wwid2), 2)
	for _, c := range [][2]int{{1, 4}, {4, 1}, {4, 2}, {2, 3}} {
		before, after := withSessions(want, c[0]), withSessions(want, c[1])
		for at := 0; ; at++ {
			crashed := false
			for way := range 6 {
				f, dir := newFake(t), t.TempDir()
				f.show(want, 1<<30)
				f.show(beside, 1<<30)
				attachAll(t, attacherOn(t, f, dir), beside, before)
				f.dieAt, f.dieBefore = len(f.steps)+at, way%2 == 0
				_, err := attacherOn(t, f, dir).Attach(t.Context(), after)
				if crashed = f.dead; crashed != (err != nil) {
					t.Fatal(crashed, err)
				}
				f.dead, f.dieAt = false, -1
				a := attacherOn(t, f, dir)
				switch way / 2 {
				case 0:
					attachAll(t, a, after)
				case 1:
					healOnce(t, a)
				case 2:
					if err := a.Detach(t.Context(), "v1"); err != nil {
						t.Fatal(err)
					}
				}
				need := 2
				if way/2 < 2 {
					need = max(2, c[1])
					if err := f.exactly(after); err != nil {
						t.Fatalf("%v, killed at step %d, way %d: %v", c, at, way, err)
					}
				}
				if err := f.exactly(beside); err != nil {
					t.Fatalf("%v, killed at step %d, way %d: %v", c, at, way, err)
				}
				if err := f.recorded(need); err != nil || len(f.sessions) != 2*need {
					t.Fatalf("%v, killed at step %d, way %d: %v, sessions %v", c, at, way, err, f.sessions)
				}
				for _, v := range []string{"v1", "v2"} {
					if err := a.Detach(t.Context(), v); err != nil {
						t.Fatal(err)
					}
				}
				if err := f.clean(); err != nil {
					t.Fatal(err)
				}
			}
			if !crashed {
				break
			}
		}
	}
}

// Fewer sessions: those that remain are the oldest, and they are left alone.
func TestFewerSessions(t *testing.T) {
	f, a, want := setup(t)
	attachAll(t, a, withSessions(want, 4))
	oldest := []int{f.sids(want)[0], f.sids(want)[4]}
	attachAll(t, a, withSessions(want, 1))
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	if got := f.sids(want); !slices.Equal(got, oldest) || count(f.steps, doLogout) != 6 {
		t.Errorf("sessions %v, not %v; %v", got, oldest, f.steps)
	}
	if err := f.recorded(1); err != nil {
		t.Error(err)
	}
	// A record from before there was a number.
	r, err := a.load("v1")
	if err != nil {
		t.Fatal(err)
	}
	r.Attachment.Sessions = 0
	if err := a.save(r); err != nil {
		t.Fatal(err)
	}
	n := len(f.steps)
	if healOnce(t, a); len(f.steps) != n {
		t.Error(f.steps[n:])
	}
}

// After a restart of the machine, all sessions are made as the record says.
func TestSeveralSessionsAfterReboot(t *testing.T) {
	f, a, want := setup(t)
	want.Sessions = 3
	attachAll(t, a, want)
	f.boot, f.sessions, f.disks, f.maps = "boot-2", nil, nil, nil
	attachAll(t, attacherOn(t, f, a.cfg.Dir), want)
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
}

// Sessions that are lost are made again, and meanwhile a volume that needs fewer uses the ones that
// are there.
func TestLostSessionOfSeveral(t *testing.T) {
	f, a, want := setup(t)
	want.Sessions = 4
	one := attachment("v2", 6, 4, wwid2)
	f.show(one, 1<<30)
	attachAll(t, a, want, one)
	u := must(t, want)
	lose := func() {
		first := f.to(u.target, u.portals[0])[0]
		f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return s.sid == first.sid })
		for _, d := range slices.Clone(f.disks) {
			if d.at.host == first.host {
				f.remove(d)
			}
		}
	}
	lose()
	f.down[u.portals[0]] = true
	st, err := a.Status(t.Context(), "v1")
	if err != nil || !st.Serves() || st.Paths[3].Connected || st.Paths[3].LastError != "no session" || !st.Paths[2].Connected {
		t.Fatalf("%+v, %v", st, err)
	}
	attachAll(t, a, want) // a missing path is no error
	healOnce(t, a)
	if err := f.exactly(one); err != nil {
		t.Fatal(err)
	}
	if m := f.mapOf(u.id); len(m.slaves) != 7 {
		t.Error(m)
	}
	f.down[u.portals[0]] = false
	rested(a)
	healOnce(t, a)
	for _, x := range []attach.Attachment{want, one} {
		if err := f.exactly(x); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.sessions) != 8 || count(f.steps, doLogout) != 0 {
		t.Error(f.sessions, f.steps)
	}
	// One that is without a connection is iscsid's.
	n := len(f.steps)
	f.sessions[5].connected = false
	if healOnce(t, a); len(f.steps) != n {
		t.Error(f.steps[n:])
	}
}

// A portal that accepts fewer sessions than are wanted: the others serve.
func TestPortalOfFewSessions(t *testing.T) {
	f, a, want := setup(t)
	want.Sessions = 4
	u := must(t, want)
	f.most = map[netip.AddrPort]int{u.portals[1]: 2}
	attachAll(t, a, want)
	st, err := a.Status(t.Context(), "v1")
	if err != nil || len(f.sessions) != 6 || len(f.mapOf(u.id).slaves) != 6 {
		t.Fatal(err, f.sessions, f.maps)
	}
	for i, p := range st.Paths {
		if p.Connected != (i < 6) || p.Connected == strings.Contains(p.LastError, "no session: no more sessions") {
			t.Errorf("%d: %+v", i, p)
		}
	}
	f.most = nil
	rested(a)
	healOnce(t, a)
	if err := f.healthy(want); err != nil {
		t.Error(err)
	}
}

// Every LUN of a striped volume has all sessions to its target, and the other target has as many.
func TestSeveralSessionsOfStripedVolume(t *testing.T) {
	f, want := newFake(t), withSessions(overPairs(5, 3, 4), 3)
	f.show(want, legSize)
	a := attacherOn(t, f, t.TempDir())
	attachAll(t, a, want)
	if err := f.wholeStripes(want); err != nil {
		t.Fatal(err)
	}
	st, err := a.Status(t.Context(), "v1")
	if err != nil || len(st.Paths) != 24 || !st.Serves() {
		t.Fatalf("%+v, %v", st, err)
	}
	for i, p := range st.Paths {
		if p.Leg != i/6 || p.Session != i%3 || !p.Connected {
			t.Errorf("%d: %+v", i, p)
		}
	}
	// Only one of the targets has another volume, which needs fewer.
	one := withSessions(attachment("v2", 1, 9, wwid2), 2)
	one.TargetIQN, one.Portals = want.Others[0].IQN, want.Others[0].Portals
	f.show(one, legSize)
	attachAll(t, a, one)
	attachAll(t, a, withSessions(want, 1))
	if err := f.exactly(one); err != nil || len(f.sids(want)) != 2 || len(f.sids(one)) != 4 {
		t.Fatal(err, f.sessions)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil || len(f.sessions) != 4 || len(f.nodes) != 2 {
		t.Fatal(err, f.sessions, f.nodes)
	}
}

// Other credentials: sessions that are up go on, and of those that are not, one at a time is made
// again.
func TestCredentialsOfSeveralSessions(t *testing.T) {
	f, a, want := setup(t)
	want.Sessions, want.Auth = 3, &attach.CHAP{User: "host", Secret: "old"}
	u := must(t, want)
	attachAll(t, a, want)
	before := f.sids(want)
	for i := range f.sessions {
		if f.sessions[i].portal == u.portals[1] {
			f.sessions[i].connected = false
		}
	}
	f.wants = map[netip.AddrPort]string{u.portals[0]: "new", u.portals[1]: "new"}
	h, now := newHealer(a), time.Now()
	h.ready = func(context.Context) error { return nil }
	h.pass(t.Context(), now)
	if h.pass(t.Context(), now.Add(2*stuckAfter)); len(f.sessions) != 5 || count(f.steps, doLogout) != 1 {
		t.Fatal("the others would be refused as well", f.sessions, f.steps)
	}
	refused, err := a.Refused(t.Context())
	if err != nil || len(refused) != 1 {
		t.Fatal(refused, err)
	}
	if err := a.Renew(t.Context(), refused[0], &attach.CHAP{User: "host", Secret: "new"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	after := f.sids(want)
	if !slices.Equal(after[:3], before[:3]) || slices.ContainsFunc(after[3:], func(sid int) bool { return slices.Contains(before, sid) }) {
		t.Errorf("before %v, after %v", before, after)
	}
	for _, s := range f.sessions {
		if !s.connected {
			t.Errorf("%+v", s)
		}
	}
	if refused, err := a.Refused(t.Context()); err != nil || len(refused) > 0 {
		t.Error(refused, err)
	}
}
