package node

import (
	"errors"
	"maps"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/hostprofile"
)

// publish rebuilds the tables from the state. The caller holds md.mu. Files of LUNs that are gone
// are closed once no command uses the old snapshot.
func (n *Node) publish() error {
	old := n.md.tables.Load()
	t, err := n.rebuilt(old)
	n.replaceTables(old, t)
	return err
}

// publishEntry is publish after an entry: of a pair with thousands of LUNs it looks at those that
// the entry has touched.
func (n *Node) publishEntry(fx *meta.Effect) error {
	old := n.md.tables.Load()
	t, err := n.patched(old, fx)
	n.replaceTables(old, t)
	return err
}

func (n *Node) replaceTables(old, t *tables) {
	n.md.tables.Store(t)
	for k, e := range old.units {
		if t.units[k] == nil {
			n.closeLater(e.close)
		}
	}
	for k, f := range old.snapshots {
		if t.snapshots[k] == nil {
			n.closeLater(f.Close)
		}
	}
}

func (n *Node) rebuilt(old *tables) (*tables, error) {
	s := n.md.state
	t := &tables{units: make(map[pair.LUNID]*unitEntry, len(s.LUNs)), snapshots: make(map[pair.LUNID]*store.File, len(s.Snapshots)),
		hosts: make(map[string]*hostEntry, len(s.Hosts))}
	for iqn, h := range s.Hosts {
		size := 0
		if prev := old.hosts[iqn]; prev != nil {
			size = len(prev.nums) + 1
		}
		t.hosts[iqn] = newHostEntry(h, size)
	}
	var errs []error
	for _, l := range s.LUNs {
		e, err := n.unit(old, l)
		if errs = append(errs, err); e == nil {
			continue
		}
		t.units[e.id] = e
		for host, m := range e.shown() {
			if h := t.hosts[host]; h != nil {
				h.luns[m.LUN] = e.seenAs(m)
				h.nums = append(h.nums, m.LUN)
			}
		}
	}
	for _, h := range t.hosts {
		slices.Sort(h.nums)
	}
	for id, x := range s.Snapshots {
		errs = append(errs, n.publishSnapshot(old, t, id, x))
	}
	return t, errors.Join(errs...)
}

func newHostEntry(h *meta.Host, luns int) *hostEntry {
	return &hostEntry{chap: h.CHAP, profile: hostprofile.Profile(h.Profile), luns: make(map[uint16]*scsi.Unit, luns), nums: make([]uint16, 0, luns)}
}

// unit is the entry of a LUN; none, if the LUN could not be made, or its bits not: its proposer
// gets the error and takes the entry of the log back.
func (n *Node) unit(old *tables, l *meta.LUN) (*unitEntry, error) {
	e, err := n.entry(old, l)
	if l.Stage != meta.Ready && (errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrNoSpace)) {
		return nil, nil
	}
	return e, err
}

// shown are the hosts that see a LUN.
func (e *unitEntry) shown() map[string]meta.Map {
	if e == nil || e.lun.Stage != meta.Ready {
		return nil
	}
	return e.lun.Maps
}

// seenAs is what a host sees that a LUN is mapped to.
func (e *unitEntry) seenAs(m meta.Map) *scsi.Unit {
	if m.ReadOnly {
		return e.ro
	}
	return e.rw
}

// publishSnapshot adds the file of a snapshot, unless it is still being made, or lost: the resync
// brings it.
func (n *Node) publishSnapshot(old, t *tables, id string, x *meta.Snapshot) error {
	k, err := parseID(id)
	if err != nil {
		return err
	}
	if f := old.snapshots[k]; f != nil {
		t.snapshots[k] = f
		return nil
	}
	if v, err := n.store.Volume(x.Volume); err == nil && !n.isMisfit(id) {
		if f, err := v.OpenSnapshot(id); err == nil {
			t.snapshots[k] = f
		}
	}
	return nil
}

func (n *Node) patched(old *tables, fx *meta.Effect) (*tables, error) {
	s := n.md.state
	t := &tables{units: maps.Clone(old.units), snapshots: old.snapshots, hosts: maps.Clone(old.hosts)}
	if t.units == nil {
		t.units, t.hosts = map[pair.LUNID]*unitEntry{}, map[string]*hostEntry{}
	}
	own := map[string]*hostEntry{} // hosts whose entries are not shared with old
	host := func(iqn string) *hostEntry {
		if e := own[iqn]; e != nil {
			return e
		}
		h := s.Hosts[iqn]
		if h == nil {
			delete(t.hosts, iqn)
			return nil
		}
		e := newHostEntry(h, 0)
		if prev := old.hosts[iqn]; prev != nil {
			e.luns, e.nums = maps.Clone(prev.luns), slices.Clone(prev.nums)
		}
		own[iqn], t.hosts[iqn] = e, e
		return e
	}
	for _, iqn := range fx.Hosts {
		host(iqn)
	}
	var errs []error
	ids := fx.LUNs
	for _, part := range fx.Each() {
		if l := part.CreatedLUN; l != nil && !slices.Contains(ids, l.UUID) { // made again
			ids = append(slices.Clone(ids), l.UUID)
		}
	}
	for _, id := range ids {
		k, err := parseID(id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var e *unitEntry
		if l := s.LUNs[id]; l != nil {
			e, err = n.unit(old, l)
			errs = append(errs, err)
		}
		for iqn, m := range old.units[k].shown() {
			if h := host(iqn); h != nil {
				h.remove(m.LUN)
			}
		}
		if delete(t.units, k); e == nil {
			continue
		}
		t.units[k] = e
		for iqn, m := range e.shown() {
			if h := host(iqn); h != nil {
				h.add(m.LUN, e.seenAs(m))
			}
		}
	}
	if len(fx.Snapshots) > 0 || len(old.snapshots) != len(s.Snapshots) {
		t.snapshots = make(map[pair.LUNID]*store.File, len(s.Snapshots))
		for id, x := range s.Snapshots {
			errs = append(errs, n.publishSnapshot(old, t, id, x))
		}
	}
	return t, errors.Join(errs...)
}

func (h *hostEntry) add(lun uint16, u *scsi.Unit) {
	if i, has := slices.BinarySearch(h.nums, lun); !has {
		h.nums = slices.Insert(h.nums, i, lun)
	}
	h.luns[lun] = u
}

func (h *hostEntry) remove(lun uint16) {
	if i, has := slices.BinarySearch(h.nums, lun); has {
		h.nums = slices.Delete(h.nums, i, i+1)
	}
	delete(h.luns, lun)
}
