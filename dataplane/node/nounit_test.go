package node

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
)

// doubting has the initiator give a LUN up soon.
func doubting(c *initiator.Config) { c.NoUnitAfter, c.Deadline = 500*time.Millisecond, time.Minute }

// A fenced host gets that answer, by both nodes or by the one that is left, and gives up.
func TestFencedHostGivesUp(t *testing.T) {
	for name, left := range map[string]int{"two nodes": 2, "one node": 1} {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			id, m := p.lun(4*mib, "a")
			d := p.device(m, doubting)
			p.write(d, 0, 1)
			if left == 1 {
				p.end(1)
				p.until("node a serves alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
			}
			if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: testHost}); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			_, err := d.WriteAt(p.ctx, make([]byte, mib), 0)
			if took := time.Since(begun); !errors.Is(err, initiator.ErrNoUnit) || took > 20*time.Second {
				t.Fatalf("after %v: %v", took, err)
			}
		})
	}
}

// A node that was away while a LUN was mapped knows of no such LUN, and one whose disk was replaced
// knows of no host. Neither is believed while the node that knows is away.
func TestNodeWithOldTablesIsNotBelieved(t *testing.T) {
	p := newTestPair(t).startBoth()
	p.lun(4*mib, "a") // so that node b knows the host
	p.end(1)
	_, m := p.lun(4*mib, "a")
	d := p.device(m, doubting)
	p.write(d, 0, 1)
	p.end(0)
	reads := make(chan error, 1)
	go func() {
		buf := make([]byte, mib)
		_, err := d.ReadAt(p.ctx, buf, 0)
		if err == nil && buf[mib-1] != 1 {
			err = errors.New("something else was read")
		}
		reads <- err
	}()
	waiting := func(what string) {
		t.Helper()
		p.until("node b is no member", func() bool { return p.nodes[1].View().Phase == pair.Outside })
		select {
		case err := <-reads:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(4 * time.Second):
		}
		if d.NoUnit() {
			t.Fatalf("%s is believed", what)
		}
	}
	p.start(1)
	p.until("its path has said something", func() bool { return said(d, p.cfg[1].ISCSIListen[0], "does not serve") })
	waiting("a node with old tables")
	p.end(1)
	if err := os.RemoveAll(p.cfg[1].StateDir); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	waiting("an empty node")
	p.start(0)
	if err := <-reads; err != nil {
		t.Fatal(err)
	}
	p.inSync()
	p.write(d, 0, 2)
}

// said reports whether a path's last error has a text.
func said(d *initiator.Device, portal, text string) bool {
	for _, x := range d.Paths() {
		if x.Portal == portal && x.LastError != nil && strings.Contains(x.LastError.Error(), text) {
			return true
		}
	}
	return false
}
