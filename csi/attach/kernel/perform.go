package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// How long single steps may take.
const (
	loginLimit = loginTimeout*time.Second*(loginAttempts+1) + 5*time.Second
	mapLimit   = 10 * time.Second // for udev and multipathd to make a map of a new path
	pathLimit  = 4 * time.Second  // for what comes right after
	flushLimit = 45 * time.Second // what is still in memory is written
)

// do implements host.
func (l *linux) do(ctx context.Context, s step) error {
	switch s.do {
	case doIface:
		return l.writeDB(l.ifacePath(), renderIface(s.node.initiator))
	case doNode:
		return l.writeNode(s.node)
	case doCount:
		return l.setCount(s.node)
	case doDropNode:
		return l.dropNode(s.node.target, s.node.portal)
	case doLogin:
		return l.login(ctx, s.node)
	case doLogout:
		return l.logout(ctx, s.session)
	case doAwaitSession:
		poll(ctx, loginLimit, func() bool {
			now, err := l.sessions()
			return err == nil && slices.ContainsFunc(now, func(n session) bool {
				return n.connected && slices.ContainsFunc(s.sessions, func(w session) bool { return w.sid == n.sid })
			})
		})
		return nil
	case doClaim:
		_, err := l.run(ctx, toolLimit, "multipath", "-a", s.id.wwid())
		return err
	case doUnclaim:
		_, err := l.run(ctx, toolLimit, "multipath", "-w", s.id.wwid())
		return err
	case doScan:
		// Channel, target and LUN are named: a wildcard would show the host LUNs that were not
		// requested.
		return l.poke(ctx, l.path("/sys/class/scsi_host", fmt.Sprintf("host%d", s.at.host), "scan"), fmt.Sprintf("%d %d %d", s.at.channel, s.at.target, s.at.lun))
	case doDelete:
		return l.deleteDisk(ctx, s.disk)
	case doRescan, doIdentify:
		return l.onDisk(s.disk, func(dir string) error { return l.poke(ctx, filepath.Join(dir, "rescan"), "1") })
	case doAwaitMap:
		l.awaitMap(ctx, s.id, s.paths)
		return nil
	case doMakeMap:
		return l.nudge(ctx, "add", "map", s.id.wwid())
	case doAddPath:
		return l.addPath(ctx, s.disk.at)
	case doMakeStripes:
		return l.makeStripes(ctx, s.volume, s.table)
	}
	return l.doMap(ctx, s)
}

// poke writes to a file of sysfs. The kernel may hold the writer up while a device does not answer.
func (l *linux) poke(ctx context.Context, path, text string) error {
	return bounded(ctx, toolLimit, path, func() error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return errors.Join(err, f.Close())
	})
}

// onDisk acts on a SCSI device if it still is the one that was observed. One that is gone is no
// error.
func (l *linux) onDisk(d disk, f func(dir string) error) error {
	dir := l.deviceDir(d.at)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if id := identity(dir); id != d.id {
		return fmt.Errorf("%s is another device now (%s, before %s)", d.at, id, d.id)
	}
	err := f(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (l *linux) deleteDisk(ctx context.Context, d disk) error {
	return l.onDisk(d, func(dir string) error {
		if err := l.poke(ctx, filepath.Join(dir, "delete"), "1"); err != nil {
			return err
		}
		poll(ctx, 5*time.Second, func() bool {
			_, err := os.Stat(dir)
			return errors.Is(err, fs.ErrNotExist)
		})
		return nil
	})
}

// awaitMap waits for udev and multipathd: for the map, for its other paths, which are a moment
// later, and for its links in /dev, which come last. While udev has more to do, a link may be made
// by a late event of an earlier map of the same number, and go with the next. Only the map is worth
// a long wait.
func (l *linux) awaitMap(ctx context.Context, id naa, paths int) {
	has := func(n int) func() bool {
		return func() bool {
			maps, err := l.maps()
			return err == nil && slices.ContainsFunc(maps, func(m dmMap) bool { return m.id == id && !m.suspended && len(m.slaves) >= n })
		}
	}
	if !poll(ctx, mapLimit, has(1)) {
		return
	}
	poll(ctx, pathLimit, has(paths))
	poll(ctx, pathLimit, func() bool {
		_, err := os.Lstat(l.path("/dev/disk/by-id", "dm-uuid-"+uuidPrefix+id.wwid()))
		_, more := os.Lstat(l.path("/run/udev/queue")) // there as long as udevadm settle would wait
		return err == nil && errors.Is(more, fs.ErrNotExist)
	})
}

// addPath waits until a disk is in a map. udev and multipathd put it there by themselves a moment
// after it has shown up; asked before udev is done with it, multipathd says yes and does nothing.
func (l *linux) addPath(ctx context.Context, at hctl) error {
	block := filepath.Join(l.deviceDir(at), "block")
	held := func() bool {
		found, err := filepath.Glob(filepath.Join(block, "*", "holders", "dm-*"))
		return err == nil && len(found) > 0
	}
	if poll(ctx, pathLimit, held) {
		return nil
	}
	names, err := list(block)
	if err != nil || len(names) != 1 {
		return err // the disk driver has not taken it
	}
	if err := l.nudge(ctx, "add", "path", names[0]); err != nil {
		return err
	}
	poll(ctx, pathLimit, held)
	return nil
}

// nudge asks multipathd for what it should have done by itself. Whether it helps is observed.
func (l *linux) nudge(ctx context.Context, words ...string) error {
	_, err := l.run(ctx, toolLimit, append([]string{"multipathd"}, words...)...)
	if errors.Is(err, errExit) {
		return nil
	}
	return err
}

// Codes that iscsiadm ends with (include/iscsi_err.h of open-iscsi).
const (
	iscsiTimeout  = 8
	iscsiNoRecord = 21
	iscsiExists   = 15
	iscsiAuth     = 24
	iscsiNoDaemon = 20
)

func (l *linux) login(ctx context.Context, n nodeRecord) error {
	err := l.iscsiadm(ctx, loginLimit, "-m", "node", "-T", string(n.target), "-p", n.portal.String(), "-I", ifaceName, "--login")
	var exit *exitError
	if !errors.As(err, &exit) {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // iscsid itself would have given up before
			return fmt.Errorf("iscsid does not serve logins (restart it: systemctl restart iscsid; sessions live on): %w", err)
		}
		return err
	}
	switch exit.code {
	case iscsiExists:
		return nil
	case iscsiTimeout:
		return fmt.Errorf("the portal does not answer: %w", err)
	case iscsiAuth:
		return fmt.Errorf("the target refused the login; if it maps no LUN to this host, that is why: %w: %w", attach.ErrCredentials, err)
	case iscsiNoDaemon:
		return fmt.Errorf("iscsid does not run: %w", err)
	}
	return err
}

func (l *linux) logout(ctx context.Context, s session) error {
	now, err := l.sessions()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(now, func(n session) bool { return n.sid == s.sid })
	if i < 0 || !now[i].ours() || now[i].target != s.target || now[i].portal != s.portal {
		return nil // gone; its number may be another's
	}
	err = l.iscsiadm(ctx, toolLimit, "-m", "session", "-r", fmt.Sprint(s.sid), "--logout")
	var exit *exitError
	if errors.As(err, &exit) && exit.code == iscsiNoRecord {
		return nil
	}
	return err
}

// device implements host.
func (l *linux) device(ctx context.Context, m dmMap) (string, error) {
	path := "/dev/" + m.kernel
	var st unix.Stat_t
	if !poll(ctx, 3*time.Second, func() bool { return unix.Stat(path, &st) == nil }) {
		return "", fmt.Errorf("%w: %s does not exist for the plugin: its /dev must be the worker's", attach.ErrFailed, path)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != m.rdev {
		return "", fmt.Errorf("%w: %s is not the map %s", attach.ErrFailed, path, strings.TrimSpace(m.name))
	}
	return path, nil
}
