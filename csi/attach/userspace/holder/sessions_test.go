package holder

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/initiator"
)

// Every number of sessions that a publish can ask for is one that a device can have.
func TestEveryLUNGetsTheSessionsOfTheAttachment(t *testing.T) {
	if attach.MaxSessions > initiator.MaxSessions {
		t.Errorf("a publish can ask for %d sessions, a device has %d at most", attach.MaxSessions, initiator.MaxSessions)
	}
	for n, want := range map[int]int{0: 1, 1: 1, 4: 4} {
		a := attach.Attachment{HostIQN: "iqn.2026-01.test:h", TargetIQN: "iqn.2026-01.test:a", Portals: []string{"192.0.2.1:3260"},
			Legs: []attach.Leg{{LUN: 1}, {LUN: 2, Target: 1}}, Stripe: 1 << 20, Sessions: n,
			Others: []attach.Target{{IQN: "iqn.2026-01.test:b", Portals: []string{"192.0.2.2:3260"}}}}
		for _, l := range a.LUNs() {
			if c := initiatorConfig(Config{Attachment: a}, l, slog.New(slog.DiscardHandler)); c.Sessions != want {
				t.Errorf("%d sessions, LUN %d: %d, want %d", n, l.LUN, c.Sessions, want)
			}
		}
	}
}

// An answer has every path of the largest volume, with errors that name it in full.
func TestLargestAnswer(t *testing.T) {
	dir := t.TempDir()
	var l net.Listener
	if err := viaDir(dir, func(short string) (err error) {
		l, err = net.Listen("unix", short)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	const paths = 16 * 2 * attach.MaxSessions
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		if bufio.NewScanner(c).Scan() {
			a := Answer{}
			for i := range paths {
				a.Paths = append(a.Paths, attach.Path{Leg: i / 16, Session: i % 8, Portal: "[2001:db8::1]:3260", LastError: strings.Repeat("x", 1500)})
			}
			_ = json.NewEncoder(c).Encode(a)
		}
	}()
	a, err := Ask(t.Context(), dir, Request{Op: OpStatus})
	if err != nil || len(a.Paths) != paths || a.Paths[paths-1].Session != attach.MaxSessions-1 {
		t.Errorf("%d paths, %v", len(a.Paths), err)
	}
	_ = l.Close()
	<-done
}
