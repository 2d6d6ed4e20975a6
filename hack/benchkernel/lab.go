package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/vm"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// Two networks, each a bridge in this process's namespace: hosts use the first, the nodes of a
// mirror the second.
var (
	bridges   = [2]string{"hosts", "mirror"}
	testIP    = "10.98.1.254"
	hostIP    = [2]string{"10.98.1.11", "10.98.1.12"} // of s1, s2
	mirrorIP  = [2]string{"10.98.2.11", "10.98.2.12"}
	guestName = [2]string{"s1", "s2"}
)

// lab is the guests and what is put into them.
type lab struct {
	dir    string
	guests [2]*vm.Guest
	record *record // of Gemel's pairs
	conns  []*grpc.ClientConn
}

func newLab(ctx context.Context, dir, from string) (*lab, error) {
	l := &lab{dir: dir}
	var own *netns.Namespace // the process's
	err := own.Command("ip", "link", "set", "lo", "up")
	for _, b := range bridges {
		err = errors.Join(err, own.Command("ip", "link", "add", b, "type", "bridge"), own.Command("ip", "link", "set", b, "up"))
	}
	if err = errors.Join(err, own.Address(bridges[0], testIP)); err != nil {
		return l, err
	}
	for i := range l.guests {
		l.guests[i], err = vm.Lab{Dir: from}.Clone(ctx, vm.Options{Name: guestName[i], Number: i + 1, Dir: dir, Bridges: bridges,
			Addresses: [2]string{hostIP[i] + "/24", mirrorIP[i] + "/24"}})
		if err != nil {
			return l, err
		}
		if _, err := l.guests[i].Shell(ctx, "mkdir -p /srv/bench"); err != nil {
			return l, err
		}
	}
	l.record, err = newRecord(testIP + ":8001")
	return l, err
}

func (l *lab) close() {
	for _, c := range l.conns {
		_ = c.Close()
	}
	for _, g := range l.guests {
		if g != nil {
			g.Close()
		}
	}
	if l.record != nil {
		l.record.close()
	}
}

// settle has both guests write their dirty pages out: those of one system are not to be written
// during another's turn.
func (l *lab) settle(ctx context.Context) error {
	var wg sync.WaitGroup
	var errs [2]error
	for i, g := range l.guests {
		wg.Go(func() { _, errs[i] = g.Output(ctx, "sync") })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// modules loads kernel modules into a guest; the error is what modprobe says.
func modules(ctx context.Context, g *vm.Guest, names ...string) error {
	out, err := g.Shell(ctx, "modprobe -a "+strings.Join(names, " ")+" 2>&1")
	if err != nil {
		return fmt.Errorf("modules %s: %s: %w", strings.Join(names, ", "), strings.TrimSpace(out), err)
	}
	return nil
}

// program builds a command of this module, without cgo, and puts it into the guests.
func (l *lab) program(ctx context.Context, pkg string) (string, error) {
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil { // it is to run on the guests' Debian
		return "", err
	}
	file, err := harness.Build(ctx, l.dir, pkg)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	to := "/usr/local/sbin/" + filepath.Base(file)
	for _, g := range l.guests {
		if err := g.Put(ctx, to, 0o755, data); err != nil {
			return "", err
		}
	}
	return to, nil
}
