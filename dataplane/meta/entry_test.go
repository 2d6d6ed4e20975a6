package meta

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// random draws an entry, sensible or not.
func random(r *rand.Rand) Entry {
	n, m := r.IntN(6), r.IntN(6)
	host := fmt.Sprint("h", r.IntN(3))
	node := []string{"a", "b", "c"}[r.IntN(3)]
	switch r.IntN(14) {
	case 0, 1:
		e := lun(n, int64(r.IntN(4)))
		e.CreateLUN.LUN.Labels = map[string]string{"x": "1", "y": "2", "z": "3"}
		e.CreateLUN.LUN.Volume = []string{"", "", "fast"}[r.IntN(3)]
		if r.IntN(3) == 0 {
			e.CreateLUN.LUN.SourceSnapshot = id(10 + m)
			e.CreateLUN.Later = r.IntN(2) == 0
		}
		return e
	case 2:
		e := snap(10+n, m)
		e.CreateSnapshot.Later = r.IntN(2) == 0
		return e
	case 12:
		return Entry{Mark: object(n+10*r.IntN(2), uint64(1+r.IntN(300)))}
	case 13:
		o := object(n+10*r.IntN(2), uint64(1+r.IntN(300)))
		return []Entry{{Commit: o}, {Abort: o}}[r.IntN(2)]
	case 3, 4:
		return Entry{Commit: &Object{UUID: id(n + 10*r.IntN(2))}}
	case 5:
		return Entry{Abort: &Object{UUID: id(n + 10*r.IntN(2))}}
	case 6:
		return Entry{DeleteLUN: &Object{UUID: id(n)}}
	case 7:
		return Entry{Expand: &Expand{id(n), int64(r.IntN(9)) << 20}}
	case 8:
		return Entry{MapHost: &MapHost{UUID: id(n), Host: host, ReadOnly: r.IntN(9) == 0}}
	case 9:
		return Entry{UnmapHost: &UnmapHost{id(n), []string{host, ""}[r.IntN(2)]}}
	case 10:
		return Entry{SetOwner: &SetOwner{All: r.IntN(2) == 0, UUIDs: []string{id(n), id(m)}, To: node}}
	}
	return Entry{PR: &PR{UUID: id(n), Nexus: scsi.NexusID{Initiator: host, Port: 1},
		Req: scsi.PROut{Action: scsi.PRRegister, ServiceKey: uint64(r.IntN(3))}}}
}

// Two nodes that apply the same entries hold the same, whatever the entries are (R9).
func TestApplyIsDeterministic(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := newTable(t), newTable(t)
		done := 0
		for range 300 {
			e := random(r)
			oa, _ := a.apply(e)
			ob, _ := b.apply(e)
			if !reflect.DeepEqual(oa, ob) {
				t.Fatalf("seed %d: outcomes %+v and %+v", seed, oa, ob)
			}
			if oa.Code == "" && !oa.Noop {
				done++
			}
			if r.IntN(20) == 0 { // one of them restarts: what it keeps is JSON
				raw, err := json.Marshal(b.State)
				if err != nil {
					t.Fatal(err)
				}
				b.State = NewState()
				if err := json.Unmarshal(raw, b.State); err != nil {
					t.Fatal(err)
				}
			}
		}
		ja, _ := json.Marshal(a.State)
		jb, _ := json.Marshal(b.State)
		if string(ja) != string(jb) {
			t.Fatalf("seed %d:\n%s\n%s", seed, ja, jb)
		}
		if done < 50 {
			t.Fatalf("seed %d: only %d entries did anything", seed, done)
		}
	}
}

func FuzzDecodeEntry(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		e := random(r)
		f.Add(e.Encode())
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"mode":{"req":{}},"pr":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntry(b)
		if err != nil {
			return
		}
		s := newTable(t)
		s.ready(1, 4)
		s.must(Entry{MapHost: &MapHost{UUID: id(1), Host: "h"}})
		out, fx := s.Apply(s.Index+1, e)
		if out.Code != "" && (fx.CreatedLUN != nil || fx.RemovedLUN != "") {
			t.Fatalf("refused, yet with effects: %+v", fx)
		}
		for k, l := range s.LUNs {
			if !canonical(k) || k != l.UUID || l.Size <= 0 || badNode(l.Owner) {
				t.Fatalf("the table holds %q: %+v", k, l)
			}
		}
	})
}
