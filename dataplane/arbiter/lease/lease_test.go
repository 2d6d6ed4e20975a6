package lease

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

func member(n pair.Node, nonce uint64) pair.Member {
	return pair.Member{Node: n, Store: "store-" + n.String(), Incarnation: pair.Incarnation{Boot: "boot", Nonce: nonce}}
}

func record(epoch uint64, members ...pair.Member) pair.Record {
	if len(members) == 0 {
		members = []pair.Member{member(pair.A, 1), member(pair.B, 2)}
	}
	return pair.Record{Cluster: "c", Pair: "p0", Epoch: epoch, Generation: 1, Members: members}
}

func TestCompareAndSwap(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	s := newServer(t, e)
	c := newClient(t, config(s))
	_, v0, err := c.Get(ctx)
	if !errors.Is(err, arbiter.ErrNotFound) || v0 == "" {
		t.Fatalf("no record: %q %v", v0, err)
	}
	if _, err := c.CompareAndSwap(ctx, "u1/6", record(1)); !errors.Is(err, arbiter.ErrConflict) {
		t.Fatalf("a version that does not stand: %v", err)
	}
	v1, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"", v0} {
		if _, err := c.CompareAndSwap(ctx, v, record(2)); !errors.Is(err, arbiter.ErrConflict) {
			t.Fatalf("a second founding over %q: %v", v, err)
		}
	}
	before := s.calls()
	v2, err := c.CompareAndSwap(ctx, v1, record(1)) // the same content is a successor, too (R2)
	if err != nil || v2 == v1 {
		t.Fatalf("no-op successor: %q %v", v2, err)
	}
	if _, err := c.CompareAndSwap(ctx, v1, record(2)); !errors.Is(err, arbiter.ErrConflict) {
		t.Fatalf("late write: %v", err)
	}
	got, v, err := c.Get(ctx)
	if want := record(1); err != nil || v != v2 || !got.Equal(&want) {
		t.Fatalf("%+v %q %v", got, v, err)
	}
	if n := s.calls() - before; n != 3 {
		t.Errorf("%d requests, want 3: one update on what was read, one read that sees the conflict, one read", n)
	}
}

// What a successor says in words is true, and what this version does not know survives.
func TestSuccessorKeepsTheObject(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	c := newClient(t, config(newServer(t, e)))
	v, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	big := record(1<<40, member(pair.B, 1<<63))
	big.Generation = 3
	if _, err := c.CompareAndSwap(ctx, v, big); err != nil {
		t.Fatal(err)
	}
	l := e.history[len(e.history)-1]
	b, _ := json.Marshal(l)
	for _, want := range []string{`"holderIdentity":"b"`, `"leaseTransitions":2147483647`, `"leaseDurationSeconds":15`,
		`"unheardOf":{"x":12345678901234567`, `"gemel.storage/pair":"p0"`, `"gemel.storage/epoch":"1099511627776"`,
		`"gemel.storage/generation":"3"`, `"gemel.storage/members":"b"`, `"renewTime":"20`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %s", b, want)
		}
	}
	got, _, err := c.Get(ctx)
	if err != nil || !got.Equal(&big) {
		t.Errorf("%+v %v", got, err)
	}
	// The policy in config/policy looks for this beginning.
	text := l["metadata"].(map[string]any)["annotations"].(map[string]any)[AnnotationRecord].(string)
	if !strings.Contains(text, `"epoch":1099511627776,"generation":3,"members":[`) {
		t.Errorf("record %s", text)
	}
}

// A later version's record has more in it; a successor of the same content, by this version, keeps
// it.
func TestSuccessorKeepsTheText(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	c := newClient(t, config(newServer(t, e)))
	if _, err := c.CompareAndSwap(ctx, "", record(1)); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(c.last.annotations[AnnotationRecord], `"boot":"boot"`, `"boot":"boot","later":1`, 1)
	e.annotate(AnnotationRecord, text)
	rec, v, err := c.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if v, err = c.CompareAndSwap(ctx, v, rec); err != nil || c.last.annotations[AnnotationRecord] != text {
		t.Errorf("%s %v", c.last.annotations[AnnotationRecord], err)
	}
	rec.Epoch++
	if _, err = c.CompareAndSwap(ctx, v, rec); err != nil || strings.Contains(c.last.annotations[AnnotationRecord], "later") {
		t.Errorf("%s %v", c.last.annotations[AnnotationRecord], err)
	}
}

func TestTokensAreBounded(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	c := newClient(t, config(newServer(t, e)))
	v := ""
	var err error
	for i := range keptWrites + 5 {
		if v, err = c.CompareAndSwap(ctx, v, record(uint64(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.last.writes()); n != keptWrites {
		t.Errorf("%d tokens", n)
	}
}

func TestDamagedAnnotationsAreRefused(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		key  string
		val  any
		want string
	}{
		"no JSON":          {AnnotationRecord, "{", "unexpected end"},
		"empty":            {AnnotationRecord, "", "unexpected end"},
		"taken away":       {AnnotationRecord, nil, "are present: restore it"},
		"another pair":     {AnnotationRecord, `{"cluster":"c","pair":"p9","epoch":1,"generation":1,"members":[{"node":0,"store":"s"}]}`, `pair "p9"`},
		"no members":       {AnnotationRecord, `{"cluster":"c","pair":"p0","epoch":1,"generation":1}`, "0 members"},
		"epoch edited":     {AnnotationEpoch, "5", "one of them was edited"},
		"members edited":   {AnnotationMembers, "b", "one of them was edited"},
		"generation taken": {AnnotationGeneration, nil, "one of them was edited"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEtcd()
			a := newClient(t, config(newServer(t, e)))
			if _, err := a.CompareAndSwap(ctx, "", record(1)); err != nil {
				t.Fatal(err)
			}
			e.annotate(c.key, c.val)
			_, _, err := a.Get(ctx)
			if !errors.Is(err, ErrDamaged) || errors.Is(err, arbiter.ErrNotFound) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if _, err := a.CompareAndSwap(ctx, "", record(1)); !errors.Is(err, arbiter.ErrConflict) {
				t.Errorf("a founding over it: %v", err)
			}
		})
	}
}

func TestNoLease(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	c := newClient(t, config(newServer(t, e)))
	v, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	e.lease = nil
	_, _, err = c.Get(ctx)
	if !errors.Is(err, ErrNoLease) || errors.Is(err, arbiter.ErrNotFound) || !strings.Contains(err.Error(), "gemel/p0") {
		t.Errorf("get: %v", err)
	}
	for _, v := range []string{"", v} {
		if _, err = c.CompareAndSwap(ctx, v, record(2)); !errors.Is(err, ErrNoLease) || errors.Is(err, arbiter.ErrConflict) {
			t.Errorf("update over %q: %v", v, err)
		}
	}
}

// A record that no node may write is refused before it is sent.
func TestInvalidRecord(t *testing.T) {
	e := newEtcd()
	s := newServer(t, e)
	c := newClient(t, config(s))
	if _, err := c.CompareAndSwap(context.Background(), "", pair.Record{Cluster: "c", Pair: "p0", Epoch: 1}); !errors.Is(err, pair.ErrRecord) {
		t.Errorf("%v", err)
	}
	if s.calls() != 0 {
		t.Errorf("%d requests", s.calls())
	}
}

// A write that is carried out twice below, so that its second answer is heard, has happened.
func TestDuplicatedWrite(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	s := newServer(t, e)
	c := newClient(t, config(s))
	s.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPut {
			twice(e, r, nil)
		}
		return true
	})
	v, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Get(ctx); err != nil || got != v || e.writes() != 1 {
		t.Fatalf("%q %q %v after %d writes", v, got, err, e.writes())
	}
	// The same, and another node writes before the second answer: landed, and not the last word.
	s.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPut {
			twice(e, r, func() {
				s.set(nil)
				other := newClient(t, config(s))
				rec, ov, err := other.Get(ctx)
				if err == nil {
					rec.Epoch++
					_, err = other.CompareAndSwap(ctx, ov, rec)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		return true
	})
	if _, err = c.CompareAndSwap(ctx, v, record(2)); !errors.Is(err, ErrSucceeded) || errors.Is(err, arbiter.ErrConflict) {
		t.Fatalf("%v", err)
	}
	if rec, _, err := c.Get(ctx); err != nil || rec.Epoch != 3 {
		t.Fatalf("%+v %v", rec, err)
	}
}

// twice carries a request out, then lets it go on as if it had not been.
func twice(e http.Handler, r *http.Request, between func()) {
	body := readAll(r)
	again := r.Clone(r.Context())
	again.Body = replay(body)
	r.Body = replay(body)
	e.ServeHTTP(httptest.NewRecorder(), again)
	if between != nil {
		between()
	}
}

// A 409 that says nothing of the version leaves the outcome open.
func TestConflictOfAnotherKind(t *testing.T) {
	ctx := context.Background()
	e := newEtcd()
	s := newServer(t, e)
	c := newClient(t, config(s))
	s.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Method == http.MethodPut {
			refuse(w, 409, "AlreadyExists")
			return false
		}
		return true
	})
	if _, err := c.CompareAndSwap(ctx, "", record(1)); !errors.Is(err, ErrUnclear) || errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("%v", err)
	}
}
