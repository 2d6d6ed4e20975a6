package enroll

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// A worker gets its own mapping, and its report of a replay counts only for that mapping.
func TestWorkerGetsItsOwnMapping(t *testing.T) {
	f := setup(t)
	lu := &v1alpha1.LogicalUnit{}
	read := func() {
		t.Helper()
		if err := f.c.Get(t.Context(), client.ObjectKey{Name: "l"}, lu); err != nil {
			t.Fatal(err)
		}
	}
	read()
	lu.Spec.Hosts = []v1alpha1.HostAccess{{IQN: iqn, ReadOnly: true, Replay: true}}
	lu.Status.WWID = "6"
	lu.Status.Hosts = []v1alpha1.HostMapping{{IQN: iqn, CHAPUser: "u", LUN: 3, Generation: 7, TargetIQN: "t", Portals: []string{"x:1", "y:1"}}}
	if err := f.c.Update(t.Context(), lu); err != nil {
		t.Fatal(err)
	}
	w := f.worker("token of a")
	r, err := w.Reach(t.Context(), enroll.ReachRequest{Volume: "l"})
	if err != nil || r.LUN != 3 || r.Generation != 7 || r.TargetIQN != "t" || len(r.Portals) != 2 || r.WWID != "6" || r.ReadOnly || r.Pair != "p" || !r.CHAP {
		t.Fatalf("%+v, %v", r, err)
	}
	for name, x := range map[string]struct {
		token string
		q     enroll.ReachRequest
		want  error
		says  string
	}{
		"another worker": {"token of b", enroll.ReachRequest{Volume: "l", Replayed: 7}, enroll.ErrNotReached, "not published"},
		"no volume":      {"token of a", enroll.ReachRequest{}, enroll.ErrNotReached, "volume"},
		"less than none": {"token of a", enroll.ReachRequest{Volume: "l", Replayed: -1}, enroll.ErrNotReached, "replayed"},
		"no such volume": {"token of a", enroll.ReachRequest{Volume: "m"}, enroll.ErrNotReached, "m"},
		"no Host":        {"token of z", enroll.ReachRequest{Volume: "l"}, enroll.ErrReach, "Host z does not exist"},
		"a wrong token":  {"secret token", enroll.ReachRequest{Volume: "l"}, enroll.ErrNotReached, "not that of a node plugin"},
		"no token":       {"", enroll.ReachRequest{Volume: "l"}, enroll.ErrReach, "bearer"},
	} {
		if _, err := f.worker(x.token).Reach(t.Context(), x.q); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if read(); !lu.Spec.Hosts[0].Replay {
		t.Fatal("the report of another worker was accepted")
	}
	if _, err := w.Reach(t.Context(), enroll.ReachRequest{Volume: "l", Replayed: 7}); !errors.Is(err, enroll.ErrReach) {
		t.Fatal(err)
	}
	if read(); lu.Spec.Hosts[0].Replay || !lu.Spec.Hosts[0].ReadOnly || lu.Annotations[v1alpha1.AnnotationReplayed] != "true" {
		t.Fatalf("%+v", lu)
	}
	// Until the reconciler has fenced the worker and mapped it again, no mapping is returned.
	if _, err := w.Reach(t.Context(), enroll.ReachRequest{Volume: "l"}); !errors.Is(err, enroll.ErrReach) {
		t.Fatal(err)
	}
}
