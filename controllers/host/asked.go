package host

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const (
	// exactness of lastRTPG in a status. Workers ask every few seconds, and each write of a Host goes to all who watch it.
	exactness = 10 * time.Minute
	// silence after which a worker that uses a path is taken not to ask. multipathd asks at each check of a path, every 20 s at most as it comes,
	// the userspace initiator every 10 s.
	silence = 10 * time.Minute
)

// asked reads when a worker last asked a node for the target port groups, and whether it has been silent over sessions that are all old
// enough. A node of an earlier version does not know: it sends no time.
func asked(a *targetv1.ListSessionsResponse) (last *metav1.Time, silent bool) {
	if a.Time == nil {
		return nil, false
	}
	now := a.Time.AsTime() // by the node's clock, as all the times are
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

// settle keeps a time that the status has already, unless the new one is far enough from it. What was asked over a session that is gone was
// asked too.
func settle(stored, seen []v1alpha1.HostSessions) {
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
