package iscsi

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/target/iscsi/pdu"
)

// Sockets that never log in delay nobody: the oldest of them makes way at once.
func TestIdleConnections(t *testing.T) {
	b := serve(t, nil, nil)
	idle := make([]*client, 200)
	for i := range idle {
		idle[i] = b.dial(t)
	}
	c := b.connect(t)
	c.ping()
	idle[0].closed()
	if n := b.half.Len(); n > 64 {
		t.Error(n, "half-open connections")
	}
	if b.Stats().Evicted.Load() < 200-64 {
		t.Error("not counted")
	}
}

// One initiator can not have all sessions, nor can one address; reinstatement always works; and the answer says what it is.
func TestSessionLimits(t *testing.T) {
	for name, change := range map[string]func(*Limits){
		"initiator": func(l *Limits) { l.InitiatorSessions = 2 },
		"address":   func(l *Limits) { l.AddressSessions = 2 },
		"all":       func(l *Limits) { l.Connections, l.InitiatorSessions, l.AddressSessions = 2, 9, 9 },
	} {
		t.Run(name, func(t *testing.T) {
			b := serve(t, func(c *Config) { change(&c.Limits) }, hostList{testHost: {}, testHost + "2": {}})
			login := func(isid byte, keys ...string) (*client, pdu.LoginStatus) {
				c := b.dial(t)
				c.isid = isid
				return c, c.login(keys...)
			}
			first, _ := login(1)
			login(2)
			c, st := login(3)
			if st != pdu.LoginOutOfResources {
				t.Fatalf("%v", st)
			}
			c.closed()
			if _, st := login(3, "SessionType", "Discovery"); st == pdu.LoginSuccess {
				t.Error("a discovery session does not count")
			}
			again, st := login(1)
			if st != pdu.LoginSuccess {
				t.Fatalf("reinstatement: %v", st)
			}
			first.closed()
			again.ping()
			other := b.dial(t)
			other.isid = 1
			r, _ := other.loginPDU(pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature),
				pairs("InitiatorName", testHost+"2", "SessionType", "Normal", "TargetName", testTarget))
			want := pdu.LoginOutOfResources
			if name == "initiator" {
				want = pdu.LoginSuccess
			}
			if status(r) != want {
				t.Errorf("another initiator: %v", status(r))
			}
			if b.Stats().Refused.Load() == 0 {
				t.Error("not counted")
			}
			again.nc.Close()
			eventually(t, "room", func() bool { _, st := login(7); return st == pdu.LoginSuccess })
		})
	}
}

// A flood of logins that fail does not fill the log.
func TestFailedLoginsInTheLog(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	b := serve(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&lockedWriter{&mu, &out}, nil)) }, nil)
	for range 3 * seldomMany {
		b.dial(t).nc.Close()
	}
	eventually(t, "all to have failed", func() bool { return b.Stats().LoginsFailed.Load() == 3*seldomMany && len(b.all()) == 0 })
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(out.String(), "login failed"); n == 0 || n > 2*seldomMany {
		t.Error(n, "lines")
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Fprintf(l.w, "%s", p)
}
