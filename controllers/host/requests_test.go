package host

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A worker is silent only if all its sessions are old enough and without requests.
func TestWorkerIsSilentIfAllSessionsAre(t *testing.T) {
	const never = -1
	session := func(since, last time.Duration) *targetv1.Session {
		s := &targetv1.Session{Since: timestamppb.New(start.Add(-since))}
		if last != never {
			s.LastRtpg = timestamppb.New(start.Add(-last))
		}
		return s
	}
	for _, c := range []struct {
		name     string
		sessions []*targetv1.Session
		last     time.Duration
		silent   bool
	}{
		{"no session", nil, never, false},
		{"a recent request", []*targetv1.Session{session(time.Hour, time.Second)}, time.Second, false},
		{"a new session", []*targetv1.Session{session(time.Minute, never)}, never, false},
		{"an old session without requests", []*targetv1.Session{session(silence, never)}, never, true},
		{"an old session with old requests", []*targetv1.Session{session(time.Hour, silence)}, silence, true},
		{"not for long yet", []*targetv1.Session{session(time.Hour, silence-time.Second)}, silence - time.Second, false},
		{"another session has requests", []*targetv1.Session{session(time.Hour, never), session(time.Hour, time.Minute)}, time.Minute, false},
		{"another session is new", []*targetv1.Session{session(time.Hour, time.Hour), session(time.Minute, never)}, time.Hour, false},
		{"no session has recent requests", []*targetv1.Session{session(time.Hour, time.Hour), session(time.Hour, 30*time.Minute), session(time.Hour, never)}, 30 * time.Minute, true},
	} {
		last, silent := lastRequest(&targetv1.ListSessionsResponse{Time: timestamppb.New(start), Sessions: c.sessions})
		if silent != c.silent || (last == nil) != (c.last == never) || last != nil && !last.Time.Equal(start.Add(-c.last)) {
			t.Errorf("%s: %v %v", c.name, last, silent)
		}
	}
	if last, silent := lastRequest(&targetv1.ListSessionsResponse{Sessions: []*targetv1.Session{session(time.Hour, never)}}); last != nil || silent {
		t.Error("a node of an earlier release:", last, silent)
	}
}

func TestRequestTimeIsKeptWithinExactness(t *testing.T) {
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: start.Add(d)} }
	list := func(node string, l *metav1.Time) []v1alpha1.HostSessions {
		return []v1alpha1.HostSessions{{Target: target, Nodes: []v1alpha1.HostSession{{Node: node, LastRTPG: l}}}}
	}
	for _, c := range []struct {
		name              string
		node              string
		stored, now, want *metav1.Time
	}{
		{"never", "a", nil, nil, nil},
		{"the first", "a", nil, at(0), at(0)},
		{"near", "a", at(0), at(exactness - time.Second), at(0)},
		{"far", "a", at(0), at(exactness), at(exactness)},
		{"the clock was set back", "a", at(0), at(-exactness), at(-exactness)},
		{"a new session without requests", "a", at(0), nil, at(0)},
		{"another node", "b", at(0), nil, nil},
	} {
		seen := list(c.node, c.now)
		keepRequestTimes(list("a", c.stored), seen)
		if got := seen[0].Nodes[0].LastRTPG; !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	seen := list("a", at(time.Second))
	if keepRequestTimes(nil, seen); !seen[0].Nodes[0].LastRTPG.Equal(at(time.Second)) {
		t.Error(seen)
	}
}

// Only a path in use is reported as silent, and a missing path comes first.
func TestSilentPathIsReportedOnlyIfUsed(t *testing.T) {
	seen := []v1alpha1.HostSessions{{Target: target, Pair: "main-p0", Nodes: []v1alpha1.HostSession{
		{Node: "a", Portal: portalA, Sessions: 1, LastRTPG: &metav1.Time{Time: start}}, {Node: "b", Portal: portalB, Sessions: 1}}}}
	whole := func(portal string) v1alpha1.HostPortal {
		return v1alpha1.HostPortal{Portal: portal, Connected: 2, NonOptimized: 2}
	}
	for _, c := range []struct {
		name   string
		a, b   v1alpha1.HostPortal
		silent []string
		reason string
		says   string
	}{
		{"all send requests", whole(portalA), whole(portalB), nil, "Ready", "every path"},
		{"one never did", whole(portalA), whole(portalB), []string{portalB}, "NotAskedForTargetPortGroups", "node b of main-p0 (" + portalB + "), but has not requested the target port groups from it ever"},
		{"one no longer does", whole(portalA), whole(portalB), []string{portalA}, "NotAskedForTargetPortGroups", "node a of main-p0 (" + portalA + "), but has not requested the target port groups from it since about 2026-11-22T10:00:00Z"},
		{"unavailable paths", whole(portalA), v1alpha1.HostPortal{Portal: portalB, Connected: 2}, []string{portalB}, "Ready", "every path"},
		{"one of the paths is missing", whole(portalA), v1alpha1.HostPortal{Portal: portalB, Connected: 1, Optimized: 1}, []string{portalB}, "PathsNotDiscovered", "ever"},
		{"no path", whole(portalA), v1alpha1.HostPortal{Portal: portalB}, []string{portalB}, "PathsNotDiscovered", "0 of 2"},
	} {
		silent := map[string]bool{}
		for _, p := range c.silent {
			silent[p] = true
		}
		h := &v1alpha1.Host{Status: v1alpha1.HostStatus{Worker: []v1alpha1.HostPaths{{Target: target, LUNs: 2, Portals: []v1alpha1.HostPortal{c.a, c.b}}}}}
		if got := pathsCondition(h, seen, silent); got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: %s %s", c.name, got.Reason, got.Message)
		}
	}
}
