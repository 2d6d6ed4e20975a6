package attach

import (
	"errors"
	"strings"
	"testing"
)

func TestSessionsInPublishContext(t *testing.T) {
	a := Attachment{VolumeID: "v", Generation: 3, HostIQN: "iqn.a", TargetIQN: "iqn.t", Portals: []string{"a:1", "b:1"}, WWID: "naa.1"}
	for n, want := range map[int]int{0: 1, 1: 1, 2: 2, MaxSessions: MaxSessions} {
		a.Sessions = n
		m := a.PublishContext()
		if (m[KeySessions] != "") != (want > 1) {
			t.Errorf("%d sessions: %v", n, m)
		}
		b, err := FromPublishContext("v", m)
		if err != nil || b.SessionCount() != want || !a.Same(b) {
			t.Errorf("%d sessions: %d, %v", n, b.SessionCount(), err)
		}
	}
	for _, s := range []string{"0", "-1", "9", "two", "2.0"} {
		m := a.PublishContext()
		m[KeySessions] = s
		if _, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), KeySessions) {
			t.Errorf("%q: %v", s, err)
		}
	}
}
