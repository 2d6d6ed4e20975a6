package attach

import (
	"fmt"
	"slices"
	"strconv"
)

// KeySessions is the number of sessions to each portal, if there is more than one. A node plugin
// that does not know it makes one.
const KeySessions = "sessions"

// MaxSessions is how many sessions to each portal a volume can have.
const MaxSessions = 8

// SessionCount is the number of sessions that the volume has to each portal: at least 1.
func (a Attachment) SessionCount() int { return max(a.Sessions, 1) }

// sessionsContext adds the number of sessions to a publish context.
func (a Attachment) sessionsContext(m map[string]string) {
	if a.SessionCount() > 1 {
		m[KeySessions] = strconv.Itoa(a.Sessions)
	}
}

func parseSessions(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > MaxSessions {
		return 0, fmt.Errorf("%w: publish context: %s %q is not in 1..%d", ErrInvalid, KeySessions, s, MaxSessions)
	}
	return n, nil
}

// Reached reports whether the portal of a path that is not connected is reached over another
// session all the same.
func (s Status) Reached(p Path) bool {
	return slices.ContainsFunc(s.Paths, func(q Path) bool { return q.Connected && q.Leg == p.Leg && q.Portal == p.Portal })
}

// Lacks reports whether a portal is not reached at all.
func (s Status) Lacks() bool {
	return slices.ContainsFunc(s.Paths, func(p Path) bool { return !p.Connected && !s.Reached(p) })
}
