package host

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const (
	// exactness of lastRTPG in a status. Workers send requests every few seconds, and each write of
	// a Host goes to all watchers.
	exactness = 10 * time.Minute
	// silence is how long a worker that uses a path may send no request before it is reported.
	// multipathd sends one with each path check, by default at least every 20 s, the userspace
	// initiator every 10 s.
	silence = 10 * time.Minute
)

// lastRequest returns when a worker last requested the target port groups from a node, and whether
// it has been silent on all its sessions long enough. A node of an earlier release does not report
// it: it sends no time.
func lastRequest(a *targetv1.ListSessionsResponse) (last *metav1.Time, silent bool) {
	if a.Time == nil {
		return nil, false
	}
	now := a.Time.AsTime() // all times are of the node's clock
	silent = len(a.Sessions) > 0
	for _, s := range a.Sessions {
		newest := s.Since.AsTime()
		if s.LastRtpg != nil {
			newest = s.LastRtpg.AsTime()
			if last == nil || newest.After(last.Time) {
				last = &metav1.Time{Time: newest}
			}
		}
		silent = silent && now.Sub(newest) >= silence
	}
	if last != nil {
		last.Time = last.Truncate(time.Second) // as the status stores it
	}
	return last, silent
}

// keepRequestTimes keeps the time of the status unless the new one differs by exactness or more.
// Requests on closed sessions count too.
func keepRequestTimes(stored, seen []v1alpha1.HostSessions) {
	for _, t := range seen {
		i := slices.IndexFunc(stored, func(s v1alpha1.HostSessions) bool { return s.Target == t.Target })
		if i < 0 {
			continue
		}
		for n := range t.Nodes {
			now := &t.Nodes[n]
			j := slices.IndexFunc(stored[i].Nodes, func(s v1alpha1.HostSession) bool { return s.Node == now.Node })
			if j < 0 || stored[i].Nodes[j].LastRTPG == nil {
				continue
			}
			if old := stored[i].Nodes[j].LastRTPG; now.LastRTPG == nil || now.LastRTPG.Sub(old.Time).Abs() < exactness {
				now.LastRTPG = old.DeepCopy()
			}
		}
	}
}
