package hostobject

import (
	"cmp"
	"slices"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/alua"
)

// Limits of the object.
const (
	maxTargets = 64
	maxPortals = 16
)

// byTarget sums up the paths of all attachments: the number of LUNs with a path for each pair and
// portal. They are sorted by name, so that equal paths give equal status.
func byTarget(all []attach.Status) (out []v1alpha1.HostPaths) {
	all = slices.SortedFunc(slices.Values(all), func(a, b attach.Status) int {
		return cmp.Compare(a.Attachment.VolumeID, b.Attachment.VolumeID) // for a stable choice among several errors
	})
	for _, st := range all {
		targets, luns := st.Attachment.Targets(), st.Attachment.LUNs()
		at := make([]int, len(targets)) // in out
		for t := range targets {
			i := slices.IndexFunc(out, func(h v1alpha1.HostPaths) bool { return h.Target == targets[t].IQN })
			if i < 0 {
				i, out = len(out), append(out, v1alpha1.HostPaths{Target: targets[t].IQN})
			}
			at[t] = i
		}
		for _, l := range luns {
			out[at[l.Target]].LUNs++
		}
		for i, p := range st.Paths {
			if p.Leg < len(luns) {
				// A LUN counts once at a portal, however many sessions it has there.
				again := slices.ContainsFunc(st.Paths[:i], func(o attach.Path) bool { return o.Connected && o.Leg == p.Leg && o.Portal == p.Portal })
				count(portal(&out[at[luns[p.Leg].Target]], p.Portal), p, again)
			}
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Portals, func(a, b v1alpha1.HostPortal) int { return cmp.Compare(a.Portal, b.Portal) })
		out[i].Portals = out[i].Portals[:min(len(out[i].Portals), maxPortals)]
	}
	slices.SortFunc(out, func(a, b v1alpha1.HostPaths) int { return cmp.Compare(a.Target, b.Target) })
	return out[:min(len(out), maxTargets)]
}

func portal(h *v1alpha1.HostPaths, address string) *v1alpha1.HostPortal {
	i := slices.IndexFunc(h.Portals, func(p v1alpha1.HostPortal) bool { return p.Portal == address })
	if i < 0 {
		i, h.Portals = len(h.Portals), append(h.Portals, v1alpha1.HostPortal{Portal: address})
	}
	return &h.Portals[i]
}

func count(at *v1alpha1.HostPortal, p attach.Path, again bool) {
	if p.Connected && !again {
		at.Connected++
		switch p.State {
		case alua.Optimized:
			at.Optimized++
		case alua.NonOptimized:
			at.NonOptimized++
		}
	}
	if at.LastError == "" && (!p.Connected || p.NoALUA) {
		at.LastError = v1alpha1.ErrorText(p.LastError)
	}
}
