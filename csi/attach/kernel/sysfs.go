package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// linux is the real host.
type linux struct {
	worker
	db      string   // open-iscsi's folder with nodes/ and ifaces/
	tables  []string // of mounts: this process's, and the worker's if that is another
	freeing sync.Mutex
}

func newLinux(c Config) (*linux, error) {
	w, err := findWorker(c.HostProc)
	if err != nil {
		return nil, err
	}
	l := &linux{worker: w, tables: []string{"/proc/self/mountinfo"}}
	if len(w.enter) > 0 {
		l.tables = append(l.tables, filepath.Join(w.proc, "mountinfo"))
	}
	l.db = l.findDB()
	return l, l.removeTemp()
}

// findDB: distributions keep the database in one of two places.
func (l *linux) findDB() string {
	for _, d := range []string{"/etc/iscsi", "/var/lib/iscsi"} {
		if _, err := os.Stat(l.path(d, "nodes")); err == nil {
			return d
		}
	}
	if _, err := os.Stat(l.path("/var/lib/iscsi")); err == nil {
		return "/var/lib/iscsi"
	}
	return "/etc/iscsi"
}

// observe implements host.
func (l *linux) observe(ctx context.Context) (o *observed, err error) {
	o = &observed{}
	if o.boot, err = attach.BootID(); err != nil {
		return nil, err
	}
	if o.sessions, err = l.sessions(); err != nil {
		return nil, fmt.Errorf("iSCSI sessions: %w", err)
	}
	if o.disks, err = l.disks(); err != nil {
		return nil, fmt.Errorf("SCSI devices: %w", err)
	}
	all, err := l.maps()
	if err != nil {
		return nil, fmt.Errorf("device-mapper devices: %w", err)
	}
	for _, m := range all {
		if !m.striped() {
			o.maps = append(o.maps, m)
			continue
		}
		if m.table, err = l.table(ctx, m); err != nil {
			return nil, fmt.Errorf("striped map %s: %w", m.kernel, err)
		}
		o.stripes = append(o.stripes, m)
	}
	if err := l.readDB(o); err != nil {
		return nil, fmt.Errorf("database of open-iscsi: %w", err)
	}
	if o.claimed, err = l.claims(); err != nil {
		return nil, fmt.Errorf("wwids of multipath: %w", err)
	}
	return o, nil
}

// attribute of sysfs. What goes away while it is read, or cannot be read now, reads as empty.
func attribute(elem ...string) string {
	raw, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// list names the entries of a folder; one that does not exist has none.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

func (l *linux) sessions() (out []session, err error) {
	class := l.path("/sys/class/iscsi_session")
	names, err := list(class)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		dir := filepath.Join(class, name)
		s := session{iface: attribute(dir, "ifacename"), state: attribute(dir, "state")}
		var ok bool
		if s.sid, err = strconv.Atoi(strings.TrimPrefix(name, "session")); err != nil {
			continue
		}
		if s.host, ok = hostOf(dir); !ok {
			continue // it goes away, or is being made
		}
		if s.targetID, err = strconv.Atoi(attribute(dir, "target_id")); err != nil {
			s.targetID = 0 // software iSCSI has one target a host
		}
		target, terr := parseIQN(attribute(dir, "targetname"))
		initiator, ierr := parseIQN(attribute(dir, "initiatorname"))
		if terr != nil || ierr != nil {
			continue
		}
		s.target, s.initiator = target, initiator
		conn := l.path("/sys/class/iscsi_connection", fmt.Sprintf("connection%d:0", s.sid))
		addr, err := netip.ParseAddr(strings.Trim(attribute(conn, "persistent_address"), "[]"))
		port, perr := strconv.ParseUint(attribute(conn, "persistent_port"), 10, 16)
		if err != nil || perr != nil {
			continue
		}
		s.portal = netip.AddrPortFrom(addr.Unmap(), uint16(port))
		// Kernels before 5.7 do not tell a connection's state.
		up := attribute(conn, "state")
		s.connected = s.state == "LOGGED_IN" && (up == "up" || up == "")
		if s.state == "LOGGED_IN" && !s.connected {
			s.state = "without connection"
		}
		out = append(out, s)
	}
	return out, nil
}

// hostOf finds the SCSI host above a device.
func hostOf(dir string) (int, bool) {
	target, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return 0, false
	}
	for part := range strings.SplitSeq(target, "/") {
		if n, ok := strings.CutPrefix(part, "host"); ok {
			if i, err := strconv.Atoi(n); err == nil {
				return i, true
			}
		}
	}
	return 0, false
}

func (l *linux) deviceDir(at hctl) string {
	return l.path("/sys/class/scsi_device", at.String(), "device")
}

func (l *linux) disks() (out []disk, err error) {
	names, err := list(l.path("/sys/class/scsi_device"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		at, err := parseHCTL(name)
		if err != nil {
			return nil, err
		}
		dir := l.deviceDir(at)
		d := disk{at: at, id: identity(dir), vendor: attribute(dir, "vendor"), product: attribute(dir, "model"), state: attribute(dir, "state"),
			handler: attribute(dir, "dh_state"), access: attribute(dir, "access_state")}
		block, err := list(filepath.Join(dir, "block"))
		if err != nil {
			return nil, err
		}
		if len(block) == 1 {
			d.name = block[0]
			b := filepath.Join(dir, "block", d.name)
			d.dev, d.size = attribute(b, "dev"), sectors(attribute(b, "size"))
			if d.holders, err = list(filepath.Join(b, "holders")); err != nil {
				return nil, err
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// identity is the NAA designator of a SCSI device as the kernel read it last.
func identity(dir string) naa {
	s, ok := strings.CutPrefix(attribute(dir, "wwid"), sysfsPrefix)
	if !ok {
		return naa{}
	}
	id, _ := parseNAA(s)
	return id
}

// sectors in sysfs have 512 bytes whatever the block size.
func sectors(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n * 512
}

func (l *linux) maps() (out []dmMap, err error) {
	dirs, err := filepath.Glob(l.path("/sys/block/dm-*"))
	if err != nil {
		return nil, err
	}
	var mounts []*mountinfo.Info
	for _, dir := range dirs {
		uuid := attribute(dir, "dm/uuid")
		id, ok := parseUUID(uuid)
		if !ok && !strings.HasPrefix(uuid, stripedPrefix) {
			continue
		}
		m := dmMap{kernel: filepath.Base(dir), uuid: uuid, id: id, name: attribute(dir, "dm/name"), dev: attribute(dir, "dev"),
			size: sectors(attribute(dir, "size")), suspended: attribute(dir, "dm/suspended") == "1"}
		var major, minor uint32
		if _, err := fmt.Sscanf(m.dev, "%d:%d", &major, &minor); err != nil {
			continue // it goes away
		}
		m.rdev = unix.Mkdev(major, minor)
		if m.slaves, err = list(filepath.Join(dir, "slaves")); err != nil {
			return nil, err
		}
		if m.holders, err = list(filepath.Join(dir, "holders")); err != nil {
			return nil, err
		}
		if mounts == nil {
			if mounts, err = l.mounts(); err != nil {
				return nil, err
			}
		}
		for _, i := range mounts {
			if uint32(i.Major) == major && uint32(i.Minor) == minor && !slices.Contains(m.mounts, i.Mountpoint) {
				m.mounts = append(m.mounts, i.Mountpoint)
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// mounts of this process and of the worker.
func (l *linux) mounts() (out []*mountinfo.Info, err error) {
	for _, table := range l.tables {
		f, err := os.Open(table)
		if err != nil {
			return nil, err
		}
		more, err := mountinfo.GetMountsFromReader(f, nil)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// claims reads the file that "multipath -a" writes: one WWID between slashes a line.
func (l *linux) claims() (map[naa]bool, error) {
	raw, err := os.ReadFile(l.path("/etc/multipath/wwids"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[naa]bool{}
	for line := range strings.SplitSeq(string(raw), "\n") {
		s, ok := strings.CutPrefix(strings.TrimSpace(line), "/3")
		if id, err := parseNAA(strings.TrimSuffix(s, "/")); ok && err == nil {
			out[id] = true
		}
	}
	return out, nil
}
