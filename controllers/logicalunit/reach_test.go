package logicalunit

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A host that replays a log may write, exclusively; its report counts once, for the current
// mapping, and the host is fenced before it is mapped read-only.
func TestHostIsFencedAfterReplayAndMappedReadOnly(t *testing.T) {
	const a, b = "iqn.2026-11.x:a", "iqn.2026-11.x:b"
	f := setup(t, func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Shared = true
		lu.Spec.Hosts = []v1alpha1.HostAccess{{IQN: strings.ToUpper(a[:3]) + a[3:], ReadOnly: true, Replay: true}}
	})
	reach := func(iqn string, replayed int64, want error) v1alpha1.HostMapping {
		t.Helper()
		_, m, err := Reach(t.Context(), f.c, "lun-1", iqn, replayed)
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Fatalf("%v, want %v", err, want)
		}
		return m
	}
	reach(a, 0, ErrNotYet) // not reconciled yet
	lu, _, err := f.look()
	if err != nil || len(lu.Status.Hosts) != 1 || lu.Status.Hosts[0].ReadOnly || !f.exclusive {
		t.Fatalf("%+v, exclusive %v, %v", lu.Status, f.exclusive, err)
	}
	first := reach(a, 0, nil)
	if first.ReadOnly || first.Generation == 0 {
		t.Fatalf("%+v", first)
	}
	// Reports of another host or another generation are ignored.
	reach(b, first.Generation, ErrNotPublished)
	if m := reach(a, first.Generation+1, nil); m.ReadOnly {
		t.Fatalf("%+v", m)
	}
	if lu, _, _ := f.look(); lu.Annotations[v1alpha1.AnnotationReplayed] != "" || !lu.Spec.Hosts[0].Replay {
		t.Fatalf("%+v", lu)
	}

	reach(a, first.Generation, ErrNotYet)
	lu = f.read()
	if lu.Annotations[v1alpha1.AnnotationReplayed] != "true" || lu.Spec.Hosts[0].Writes() {
		t.Fatalf("%+v", lu)
	}
	f.spec(func(*v1alpha1.LogicalUnit) {}) // the API server increments the generation
	// Until the host is fenced, no read-only mapping is returned.
	f.fail["unmap "+a] = codes.DeadlineExceeded
	f.look()
	reach(a, 0, ErrNotYet)
	delete(f.fail, "unmap "+a)
	lu, _, err = f.look()
	if i, j := slices.Index(f.calls, "unmap "+a), slices.Index(f.calls, "map "+a); err != nil || i < 0 || j < i || f.exclusive {
		t.Fatalf("%v, exclusive %v, %v", f.calls, f.exclusive, err)
	}
	second := reach(a, 0, nil)
	if !second.ReadOnly || second.Generation == first.Generation || !lu.Status.Hosts[0].ReadOnly {
		t.Fatalf("%+v", second)
	}
	// A repeated report, of a worker that missed the response, changes nothing.
	if m := reach(a, first.Generation, nil); m.Generation != second.Generation {
		t.Fatalf("%+v", m)
	}
	if lu, _, _ := f.look(); lu.Status.Hosts[0].Generation != second.Generation {
		t.Fatalf("%+v", lu.Status)
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Hosts = nil })
	f.look()
	reach(a, first.Generation, ErrNotPublished)
	if _, _, err := Reach(t.Context(), f.c, "another", a, 0); !errors.Is(err, ErrNotPublished) {
		t.Fatal(err)
	}
}

func (f *fixture) read() *v1alpha1.LogicalUnit {
	f.Helper()
	var lu v1alpha1.LogicalUnit
	if err := f.c.Get(f.Context(), client.ObjectKey{Name: "lun-1"}, &lu); err != nil {
		f.Fatal(err)
	}
	return &lu
}
