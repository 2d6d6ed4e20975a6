package iscsi

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// Sockets that never log in delay no other session: the oldest of them makes way at once.
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

// One initiator cannot have all sessions, nor can one address; reinstatement always works; and the
// answer says what it is.
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

// oneHost is every initiator.
type oneHost struct{ atomic.Pointer[Host] }

func (o *oneHost) Admit(string) Host { return *o.Load() }

// Only a node that serves says that a host has no LUN; discovery is for all whose credentials are
// known.
func TestLoginOfHostsWithoutLUNs(t *testing.T) {
	w := &oneHost{}
	b := serveHosts(t, nil, w)
	toFFP := pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature)
	for _, x := range []struct {
		host              Host
		normal, discovery pdu.LoginStatus
		shown             bool
	}{
		{Host{Known: true, LUNs: true, Sure: true}, pdu.LoginSuccess, pdu.LoginSuccess, true},
		{Host{Known: true, LUNs: true}, pdu.LoginSuccess, pdu.LoginSuccess, true},
		{Host{Known: true, Sure: true}, pdu.LoginForbidden, pdu.LoginSuccess, false},
		{Host{Known: true}, pdu.LoginUnavailable, pdu.LoginSuccess, true},
		{Host{Sure: true}, pdu.LoginForbidden, pdu.LoginForbidden, false},
		{Host{}, pdu.LoginUnavailable, pdu.LoginUnavailable, false},
	} {
		w.Store(&x.host)
		forbidden, notYet := b.Stats().Forbidden.Load(), b.Stats().NotYet.Load()
		count := func(s pdu.LoginStatus) {
			switch s {
			case pdu.LoginForbidden:
				forbidden++
			case pdu.LoginUnavailable:
				notYet++
			}
		}
		c := b.dial(t)
		if r, _ := c.loginPDU(toFFP, pairs("InitiatorName", testHost, "TargetName", testTarget)); status(r) != x.normal {
			t.Errorf("%+v: %s", x.host, status(r))
		}
		count(x.normal)
		c = b.dial(t)
		r, _ := c.loginPDU(toFFP, pairs("InitiatorName", testHost, "SessionType", "Discovery"))
		if status(r) != x.discovery {
			t.Errorf("%+v, discovery: %s", x.host, status(r))
		}
		count(x.discovery)
		if got := b.Stats(); got.Forbidden.Load() != forbidden || got.NotYet.Load() != notYet {
			t.Errorf("%+v: counted %d and %d, want %d and %d", x.host, got.Forbidden.Load(), got.NotYet.Load(), forbidden, notYet)
		}
		if status(r) != pdu.LoginSuccess {
			c.closed()
			continue
		}
		c.check = true
		for _, name := range []string{"All", testTarget} {
			c.send(c.request(pdu.TextReq, pdu.Final, false), pairs("SendTargets", name).Append(nil))
			if _, data := c.recv(); len(data) > 0 != x.shown {
				t.Errorf("%+v: SendTargets=%s shows %q", x.host, name, data)
			}
		}
	}
}
