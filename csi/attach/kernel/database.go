package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gemel-storage/gemel/csi/durable"
)

// Files are made in the database's own folder and renamed to their place: iscsiadm takes every file
// below nodes/ and ifaces/ for a record.
const tempPattern = ".gemel-*"

// nodePath is where open-iscsi looks for the record of a portal whose group's tag is not known
// (usr/idbm.c, "old style").
func (l *linux) nodePath(target iqn, portal netip.AddrPort) string {
	return l.path(l.db, "nodes", string(target), fmt.Sprintf("%s,%d", portal.Addr(), portal.Port()))
}

func (l *linux) ifacePath() string { return l.path(l.db, "ifaces", ifaceName) }

// readDB reads our records. Those of other interfaces are not looked at.
func (l *linux) readDB(o *observed) error {
	raw, err := os.ReadFile(l.ifacePath())
	if err == nil {
		o.iface = sum(raw)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	targets, err := list(l.path(l.db, "nodes"))
	if err != nil {
		return err
	}
	for _, t := range targets {
		target, err := parseIQN(t)
		if err != nil || string(target) != t {
			continue
		}
		portals, err := list(l.path(l.db, "nodes", t))
		if err != nil {
			return err
		}
		for _, p := range portals {
			portal, ok := parseNodeName(p)
			if !ok {
				continue
			}
			raw, err := os.ReadFile(l.nodePath(target, portal))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if isOurs(raw) {
				o.nodes = append(o.nodes, nodeFile{target: target, portal: portal, sum: sum(raw), sessions: countOf(raw)})
			}
		}
	}
	return nil
}

// parseNodeName reads "address,port".
func parseNodeName(s string) (netip.AddrPort, bool) {
	a, p, ok := strings.Cut(s, ",")
	addr, err := netip.ParseAddr(a)
	port, perr := strconv.ParseUint(p, 10, 16)
	return netip.AddrPortFrom(addr, uint16(port)), ok && err == nil && perr == nil
}

func isOurs(record []byte) bool {
	return slices.Contains(strings.Split(string(record), "\n"), "iface.iscsi_ifacename = "+ifaceName)
}

// countOf reads keyCount. open-iscsi takes a record without it for one session.
func countOf(record []byte) int {
	for line := range strings.SplitSeq(string(record), "\n") {
		if v, ok := strings.CutPrefix(line, keyCount+" = "); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
				return n
			}
		}
	}
	return 1
}

// withCount is a record with another keyCount. The rest stays as it is: the secrets in it are not
// known to who detaches or heals.
func withCount(record []byte, n int) []byte {
	lines, line := strings.Split(string(record), "\n"), fmt.Sprintf("%s = %d", keyCount, n)
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, keyCount+" = ") }); i >= 0 {
		lines[i] = line
	} else {
		lines = slices.Insert(lines, max(0, slices.Index(lines, "# END RECORD")), line)
	}
	return []byte(strings.Join(lines, "\n"))
}

// setCount changes how many sessions a login makes.
func (l *linux) setCount(n nodeRecord) error {
	path := l.nodePath(n.target, n.portal)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !isOurs(raw) {
		return nil
	}
	if err != nil {
		return err
	}
	return l.writeDB(path, withCount(raw, n.sessions))
}

func (l *linux) writeNode(n nodeRecord) error {
	path := l.nodePath(n.target, n.portal)
	raw, err := os.ReadFile(path)
	if err == nil && !isOurs(raw) {
		return fmt.Errorf("%s is a record of another program: remove it with iscsiadm -m node -T %s -p %s -o delete", path, n.target, n.portal)
	}
	return l.writeDB(path, n.render())
}

// writeDB replaces a file. The file may have a secret: at no time can another user read it.
func (l *linux) writeDB(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.WriteBy(l.path(l.db), tempPattern, path, content)
}

func (l *linux) dropNode(target iqn, portal netip.AddrPort) error {
	path := l.nodePath(target, portal)
	if raw, err := os.ReadFile(path); err == nil && !isOurs(raw) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // unless another record is there
	return nil
}

// removeTemp removes what a crash left while a record was written.
func (l *linux) removeTemp() error {
	left, err := filepath.Glob(l.path(l.db, tempPattern))
	for _, f := range left {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}
