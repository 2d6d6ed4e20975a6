package hostobject

import (
	"testing"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/alua"
)

// A LUN counts once at a portal. A session that is missing beside others costs no redundancy, and
// is reported.
func TestSeveralSessionsToAPortal(t *testing.T) {
	a := attach.Attachment{VolumeID: "v", TargetIQN: "iqn.t", Portals: []string{"a:1", "b:1"}, Sessions: 2}
	st := attach.Status{Attachment: a, Paths: []attach.Path{
		{Portal: "a:1", LastError: "no session"}, {Portal: "a:1", Session: 1, Connected: true, State: alua.Optimized},
		{Portal: "b:1", Connected: true, State: alua.NonOptimized}, {Portal: "b:1", Session: 1, Connected: true, State: alua.NonOptimized},
	}}
	got := byTarget([]attach.Status{st})
	want := []v1alpha1.HostPortal{{Portal: "a:1", Connected: 1, Optimized: 1, LastError: "no session"}, {Portal: "b:1", Connected: 1, NonOptimized: 1}}
	if len(got) != 1 || got[0].LUNs != 1 || len(got[0].Portals) != 2 || got[0].Portals[0] != want[0] || got[0].Portals[1] != want[1] {
		t.Errorf("%+v", got)
	}
}
