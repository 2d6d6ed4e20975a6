package scsi_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func nexusID(i int) scsi.NexusID {
	return scsi.NexusID{Initiator: fmt.Sprintf("iqn.2024-01.host:%d", i/2), ISID: [6]byte{5: byte(i)}, Port: uint16(i%2 + 1)}
}

// script applies changes one after the other; no other fields are needed.
type prStep struct {
	by   int
	req  scsi.PROut
	want byte                     // status
	uas  map[int][]scsi.Attention // by nexus
	kill []int
}

func runPR(t *testing.T, steps []prStep) *scsi.PRState {
	t.Helper()
	s := &scsi.PRState{}
	for i, st := range steps {
		before, _ := json.Marshal(s)
		next, out, uas, aborts := scsi.ApplyPROut(s, nexusID(st.by), &st.req)
		if after, _ := json.Marshal(s); string(after) != string(before) {
			t.Fatalf("step %d changed the state it was given", i)
		}
		if out.Status != st.want {
			t.Fatalf("step %d: status %02x, want %02x", i, out.Status, st.want)
		}
		got := map[int][]scsi.Attention{}
		for _, a := range uas {
			for j := range 8 {
				if nexusID(j) == a.Nexus {
					got[j] = append(got[j], a.Attention)
				}
			}
		}
		if len(got)+len(st.uas) > 0 && !reflect.DeepEqual(got, st.uas) {
			t.Fatalf("step %d: attentions %v, want %v", i, got, st.uas)
		}
		var kill []scsi.NexusID
		for _, k := range st.kill {
			kill = append(kill, nexusID(k))
		}
		if !slices.Equal(aborts, kill) {
			t.Fatalf("step %d: aborts %v, want %v", i, aborts, kill)
		}
		s = next
	}
	return s
}

func reg(by int, key uint64) prStep {
	return prStep{by: by, req: scsi.PROut{Action: scsi.PRRegisterIgnore, ServiceKey: key}}
}

const conflict, check = scsi.StatusReservationConflict, scsi.StatusCheckCondition

func TestRegistrationOfKeys(t *testing.T) {
	s := runPR(t, []prStep{
		{by: 0, req: scsi.PROut{Action: scsi.PRRegister, Key: 7, ServiceKey: 1}, want: conflict}, // not registered with 7
		{by: 0, req: scsi.PROut{Action: scsi.PRRegister, ServiceKey: 1}},
		{by: 0, req: scsi.PROut{Action: scsi.PRRegister, ServiceKey: 2}, want: conflict}, // needs its key
		{by: 0, req: scsi.PROut{Action: scsi.PRRegister, Key: 1, ServiceKey: 2, APTPL: true}},
		{by: 1, req: scsi.PROut{Action: scsi.PRRegister}}, // unregistering what is not: nothing
		reg(1, 9),
		{by: 1, req: scsi.PROut{Action: scsi.PRRegister, Key: 9}},
	})
	want := []scsi.Registrant{{Nexus: nexusID(0), Key: 2}}
	if !slices.Equal(s.Registrants, want) || s.Generation != 4 || s.APTPL {
		t.Errorf("%+v", s)
	}
}

func TestReserveAndRelease(t *testing.T) {
	reserve := func(by int, key uint64, typ byte, want byte) prStep {
		return prStep{by: by, req: scsi.PROut{Action: scsi.PRReserve, Key: key, Type: typ}, want: want}
	}
	release := func(by int, key uint64, typ byte, want byte) prStep {
		return prStep{by: by, req: scsi.PROut{Action: scsi.PRRelease, Key: key, Type: typ}, want: want}
	}
	last := release(0, 1, scsi.PRWriteExclusiveRegOnly, 0)
	last.uas = map[int][]scsi.Attention{2: {scsi.AttnReservationReleased}}
	s := runPR(t, []prStep{
		reserve(0, 0, scsi.PRWriteExclusive, conflict), // not registered
		reg(0, 1), reg(2, 2),
		reserve(0, 9, scsi.PRWriteExclusive, conflict), // wrong key
		reserve(0, 1, scsi.PRWriteExclusiveRegOnly, 0),
		reserve(0, 1, scsi.PRWriteExclusiveRegOnly, 0), // again
		reserve(0, 1, scsi.PRExclusiveAccess, conflict),
		reserve(2, 2, scsi.PRWriteExclusiveRegOnly, conflict),
		release(2, 2, scsi.PRWriteExclusiveRegOnly, 0), // not the holder: nothing
		release(0, 1, scsi.PRExclusiveAccess, check),   // 26/04
		last,
	})
	if s.Type != 0 || s.Generation != 2 { // RESERVE and RELEASE do not count
		t.Errorf("%+v", s)
	}
}

func TestPreemptRemovesRegistrations(t *testing.T) {
	we := scsi.PROut{Action: scsi.PRReserve, Key: 1, Type: scsi.PRWriteExclusive}
	s := runPR(t, []prStep{
		reg(0, 1), reg(2, 2), reg(4, 2), reg(6, 3),
		{by: 0, req: we},
		{by: 6, req: scsi.PROut{Action: scsi.PRPreempt, Key: 3, ServiceKey: 99, Type: 3}, want: conflict}, // no nexus has it
		{by: 6, req: scsi.PROut{Action: scsi.PRPreempt, Key: 3, Type: 3}, want: check},                    // 0: not with this type
		{by: 6, req: scsi.PROut{Action: scsi.PRPreempt, Key: 3, ServiceKey: 2, Type: 3}, uas: map[int][]scsi.Attention{
			2: {scsi.AttnRegistrationPreempt}, 4: {scsi.AttnRegistrationPreempt}}}, // not the holder's key: no change of hands
		{by: 6, req: scsi.PROut{Action: scsi.PRPreemptAbort, Key: 3, ServiceKey: 1, Type: scsi.PRExclusiveAccess},
			uas: map[int][]scsi.Attention{0: {scsi.AttnRegistrationPreempt}}, kill: []int{0}},
	})
	if s.Holder != nexusID(6) || s.Type != scsi.PRExclusiveAccess || len(s.Registrants) != 1 || s.Generation != 6 {
		t.Errorf("%+v", s)
	}
}

func TestAllRegistrants(t *testing.T) {
	typ := byte(scsi.PRExclusiveAccessAllReg)
	s := runPR(t, []prStep{
		reg(0, 1), reg(2, 2),
		{by: 0, req: scsi.PROut{Action: scsi.PRReserve, Key: 1, Type: typ}},
		{by: 2, req: scsi.PROut{Action: scsi.PRReserve, Key: 2, Type: typ}},    // it holds it too
		{by: 0, req: scsi.PROut{Action: scsi.PRRegisterIgnore, ServiceKey: 0}}, // one leaves: it stays
	})
	if s.Type != typ || len(s.Registrants) != 1 {
		t.Fatalf("%+v", s)
	}
	s, _, _, _ = scsi.ApplyPROut(s, nexusID(2), &scsi.PROut{Action: scsi.PRRegisterIgnore})
	if s.Type != 0 {
		t.Errorf("the last registrant left and the reservation stayed: %+v", s)
	}
}

func TestClearAndMoveAndUnmap(t *testing.T) {
	s := runPR(t, []prStep{
		reg(0, 1), reg(2, 2),
		{by: 0, req: scsi.PROut{Action: scsi.PRReserve, Key: 1, Type: scsi.PRWriteExclusiveRegOnly}},
		{by: 2, req: scsi.PROut{Action: scsi.PRRegisterMove, Key: 2, ServiceKey: 5, MoveTo: nexusID(4)}, want: conflict},
		{by: 0, req: scsi.PROut{Action: scsi.PRRegisterMove, Key: 1, ServiceKey: 5, MoveTo: nexusID(4), Unregister: true}},
	})
	if s.Holder != nexusID(4) || len(s.Registrants) != 2 {
		t.Fatalf("%+v", s)
	}
	s, _, uas, _ := scsi.ApplyPROut(s, scsi.NexusID{Initiator: nexusID(4).Initiator}, &scsi.PROut{Action: scsi.PRUnmap})
	if s.Type != 0 || len(s.Registrants) != 1 || len(uas) != 1 || uas[0].Nexus != nexusID(2) {
		t.Errorf("%+v %v", s, uas)
	}
	s, _, uas, _ = scsi.ApplyPROut(s, nexusID(2), &scsi.PROut{Action: scsi.PRClear, Key: 2})
	if len(s.Registrants) != 0 || len(uas) != 0 {
		t.Errorf("%+v %v", s, uas)
	}
}

func TestConflictTable(t *testing.T) {
	const q, r, w = scsi.AccessQuery, scsi.AccessRead, scsi.AccessWrite
	for _, c := range []struct {
		typ                    byte
		registered, unregister []scsi.AccessKind // what conflicts
	}{
		{scsi.PRWriteExclusive, []scsi.AccessKind{w}, []scsi.AccessKind{w}},
		{scsi.PRExclusiveAccess, []scsi.AccessKind{r, w}, []scsi.AccessKind{r, w}},
		{scsi.PRWriteExclusiveRegOnly, nil, []scsi.AccessKind{w}},
		{scsi.PRExclusiveAccessReg, nil, []scsi.AccessKind{r, w}},
		{scsi.PRWriteExclusiveAllReg, nil, []scsi.AccessKind{w}},
		{scsi.PRExclusiveAccessAllReg, nil, []scsi.AccessKind{r, w}},
	} {
		s := &scsi.PRState{Type: c.typ, Holder: nexusID(0),
			Registrants: []scsi.Registrant{{Nexus: nexusID(0), Key: 1}, {Nexus: nexusID(2), Key: 2}}}
		holder, registered, other := nexusID(0), nexusID(2), nexusID(4)
		for _, k := range []scsi.AccessKind{scsi.AccessFree, q, r, w} {
			if s.Conflict(&holder, k) {
				t.Errorf("type %d: the holder conflicts with %d", c.typ, k)
			}
			if got := s.Conflict(&registered, k); got != slices.Contains(c.registered, k) {
				t.Errorf("type %d: a registrant, kind %d: %v", c.typ, k, got)
			}
			if got := s.Conflict(&other, k); got != slices.Contains(c.unregister, k) {
				t.Errorf("type %d: a stranger, kind %d: %v", c.typ, k, got)
			}
		}
		if n := testing.AllocsPerRun(100, func() { s.Conflict(&other, w) }); n != 0 {
			t.Errorf("Conflict allocates")
		}
	}
}

// Whatever is asked in whatever order: the state stays well-formed, survives its encoding and does
// not depend on who computes it.
func TestReservationsStayWellFormed(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := &scsi.PRState{}
		for range 200 {
			actions := []scsi.PRAction{0, 1, 2, 3, 4, 5, 6, 7, scsi.PRReserve6, scsi.PRRelease6, scsi.PRReset, scsi.PRUnmap}
			req := &scsi.PROut{Action: actions[rnd.IntN(len(actions))], Type: []byte{1, 3, 5, 6, 7, 8}[rnd.IntN(6)],
				Key: rnd.Uint64N(3), ServiceKey: rnd.Uint64N(3), MoveTo: nexusID(rnd.IntN(6)), Unregister: rnd.IntN(2) == 0}
			n := nexusID(rnd.IntN(6))
			raw, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var again scsi.PRState
			if err := json.Unmarshal(raw, &again); err != nil {
				t.Fatal(err)
			}
			a, ao, au, ak := scsi.ApplyPROut(s, n, req)
			b, bo, bu, bk := scsi.ApplyPROut(&again, n, req)
			x, _ := json.Marshal(a)
			y, _ := json.Marshal(b)
			if string(x) != string(y) || !reflect.DeepEqual(ao, bo) || !slices.Equal(au, bu) || !slices.Equal(ak, bk) {
				t.Fatalf("seed %d: two nodes differ: %s and %s", seed, x, y)
			}
			s = a
			registered := map[scsi.NexusID]bool{}
			for _, r := range s.Registrants {
				if r.Key == 0 || registered[r.Nexus] {
					t.Fatalf("seed %d: %s", seed, x)
				}
				registered[r.Nexus] = true
			}
			all := s.Type == scsi.PRWriteExclusiveAllReg || s.Type == scsi.PRExclusiveAccessAllReg
			if s.Type != 0 && (len(registered) == 0 || !all && !registered[s.Holder]) {
				t.Fatalf("seed %d: nobody holds the reservation: %s", seed, x)
			}
			if s.Type == 0 && s.Holder != (scsi.NexusID{}) {
				t.Fatalf("seed %d: a holder of nothing: %s", seed, x)
			}
		}
	}
}
