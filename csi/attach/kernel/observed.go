package kernel

import (
	"cmp"
	"net/netip"
	"slices"
)

// ifaceName is our iSCSI interface record. A session is ours if it was made through it.
const ifaceName = "gemel"

// session is an iSCSI session of the kernel.
type session struct {
	sid       int
	host      int // SCSI host number
	targetID  int // of the SCSI target below it
	iface     string
	initiator iqn
	target    iqn
	portal    netip.AddrPort // the one it was made for, whatever a redirection said
	connected bool           // logged in, and its connection up
	state     string         // in words, for people
}

func (s session) ours() bool { return s.iface == ifaceName }

// disk is a SCSI device.
type disk struct {
	at      hctl
	name    string // sdX; empty until the disk driver has taken it
	dev     string // major:minor
	id      naa    // from its VPD page 83h; none if it shows another sort
	vendor  string
	product string
	state   string // running, blocked, offline, transport-offline, ...
	handler string // alua, or detached
	access  string // ALUA state in the words of sysfs
	size    int64  // bytes
	holders []string
}

// dmMap is a multipath map of one of our LUNs, or of anybody's with an NAA designator, or one of
// our striped maps.
type dmMap struct {
	kernel    string // dm-N
	name      string
	uuid      string
	id        naa    // none: it is a striped one
	table     string // of a striped one; empty: it has none
	dev       string // major:minor
	rdev      uint64
	size      int64 // bytes
	suspended bool
	slaves    []string // sdX; dm-N of a striped one
	holders   []string // devices on top of it
	mounts    []string // where it is mounted
}

func (m dmMap) striped() bool { return !m.id.known() }

// users are what holds a map, in words.
func (m dmMap) users() []string {
	out := slices.Clone(m.mounts)
	for _, h := range m.holders {
		out = append(out, "/dev/"+h)
	}
	return out
}

// nodeFile is a record of ours in the node database of open-iscsi.
type nodeFile struct {
	target   iqn
	portal   netip.AddrPort
	sum      string // of its content, which may have a secret
	sessions int    // that a login makes
}

// observed is what is there, whatever any record says.
type observed struct {
	boot     string // id of this boot of the machine
	sessions []session
	disks    []disk
	maps     []dmMap // of multipath
	stripes  []dmMap
	nodes    []nodeFile
	iface    string       // sum of our interface's record
	claimed  map[naa]bool // LUNs that multipath-tools have to take, even if find_multipaths says no
}

// to lists the sessions of ours to a portal of a target, the oldest first: the kernel numbers
// sessions upwards, while the numbers of SCSI hosts are used again.
func (o *observed) to(target iqn, portal netip.AddrPort) (out []session) {
	for _, s := range o.sessions {
		if s.ours() && s.target == target && s.portal == portal {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b session) int { return cmp.Compare(a.sid, b.sid) })
	return out
}

func (o *observed) disk(at hctl) *disk {
	for i := range o.disks {
		if o.disks[i].at == at {
			return &o.disks[i]
		}
	}
	return nil
}

func (o *observed) named(name string) *disk {
	for i := range o.disks {
		if name != "" && o.disks[i].name == name {
			return &o.disks[i]
		}
	}
	return nil
}

// disksOf lists the paths of a LUN, through whatever session.
func (o *observed) disksOf(id naa) (out []disk) {
	for _, d := range o.disks {
		if d.id == id {
			out = append(out, d)
		}
	}
	return out
}

func (o *observed) mapOf(id naa) *dmMap {
	for i := range o.maps {
		if o.maps[i].id == id {
			return &o.maps[i]
		}
	}
	return nil
}

func (o *observed) node(target iqn, portal netip.AddrPort) *nodeFile {
	for i, n := range o.nodes {
		if n.target == target && n.portal == portal {
			return &o.nodes[i]
		}
	}
	return nil
}

// heldByOther tells whether a disk is a path of a map of another LUN.
func (o *observed) heldByOther(d disk, id naa) bool {
	return slices.ContainsFunc(o.maps, func(m dmMap) bool { return m.id != id && slices.Contains(d.holders, m.kernel) })
}

// usedBeside tells whether anything but the map of a LUN uses a disk.
func (o *observed) usedBeside(d disk, id naa) bool {
	m := o.mapOf(id)
	return slices.ContainsFunc(d.holders, func(h string) bool { return m == nil || h != m.kernel })
}

// oursOn tells whether a SCSI host belongs to a session of ours.
func (o *observed) oursOn(host int) bool {
	return slices.ContainsFunc(o.sessions, func(s session) bool { return s.ours() && s.host == host })
}

// idle tells whether no device is made of the disks behind a session.
func (o *observed) idle(s session) bool {
	return !slices.ContainsFunc(o.disks, func(d disk) bool { return d.at.host == s.host && len(d.holders) > 0 })
}

// carries tells whether ending a session would take the last path of a map that somebody uses, or a
// disk that is used by itself.
func (o *observed) carries(s session) bool {
	for _, d := range o.disks {
		if d.at.host != s.host {
			continue
		}
		for _, h := range d.holders {
			i := slices.IndexFunc(o.maps, func(m dmMap) bool { return m.kernel == h })
			if i < 0 {
				return true // something that we do not understand
			}
			elsewhere := slices.ContainsFunc(o.maps[i].slaves, func(name string) bool {
				other := o.named(name)
				return other != nil && other.at.host != s.host
			})
			if !elsewhere {
				return true
			}
		}
	}
	return false
}
