package node

import (
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// fileKey is where an object lies.
type fileKey struct {
	volume   string
	snapshot bool
	id       string
}

func lunKey(l *meta.LUN) fileKey           { return fileKey{l.Volume, false, l.UUID} }
func snapshotKey(s *meta.Snapshot) fileKey { return fileKey{s.Volume, true, s.UUID} }

// files lists the objects in the store.
func (n *Node) files() (map[fileKey]store.Info, error) {
	have := map[fileKey]store.Info{}
	for _, v := range n.store.Volumes() {
		luns, err := v.ListLUNs()
		if err != nil {
			return nil, err
		}
		snaps, err := v.ListSnapshots()
		if err != nil {
			return nil, err
		}
		for _, i := range luns {
			have[fileKey{meta.VolumeOf(v.Name()), false, i.UUID}] = i
		}
		for _, i := range snaps {
			have[fileKey{meta.VolumeOf(v.Name()), true, i.UUID}] = i
		}
	}
	return have, nil
}

// applyFiles makes what must be there before an entry is durable, of which s is the state.
func (n *Node) applyFiles(s *meta.State, fx *meta.Effect, joining bool) (err error) {
	if err := n.whole(fx); err != nil {
		return err
	}
	if id := copyOf(fx); joining && id != "" {
		if err := n.addCopying([]string{id}); err != nil {
			return err
		}
	}
	switch {
	case fx.CreatedLUN != nil:
		l := fx.CreatedLUN
		defer n.noteOccupied(l.UUID, &err)
		v, err := n.store.Volume(l.Volume)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.self, err)
		}
		if l.Born != s.Index { // begun by an earlier entry, whose proposer did not see its end
			if done, err := n.begun(v, l, joining); done || err != nil {
				return err
			}
		}
		switch {
		case l.Stage == meta.Empty || l.SourceSnapshot == "" && l.SourceLUN == "":
			return v.CreateCleanLUN(l.UUID, l.Size, l.Born)
		case l.SourceSnapshot != "":
			err = v.CloneFromSnapshot(n.run.ctx, l.SourceSnapshot, l.UUID, l.Size, l.Born, nil)
		default:
			err = v.CloneLUN(n.run.ctx, l.SourceLUN, l.UUID, l.Size, l.Born, nil)
		}
		if err != nil {
			return err
		}
		return v.CleanIntents(l.UUID, l.Size)
	case fx.CreatedSnapshot != nil:
		x := fx.CreatedSnapshot
		defer n.noteOccupied(x.UUID, &err)
		v, err := n.store.Volume(x.Volume)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.self, err)
		}
		if x.Stage == meta.Empty {
			return v.CreateSnapshot(x.UUID, x.Size, x.Born)
		}
		return v.Snapshot(n.run.ctx, x.Source, x.UUID, x.Born, nil)
	case len(fx.Marked) > 0:
		return n.markCopies(fx.Marked, joining)
	case fx.Grown != nil:
		from := fx.Grown.Size
		if l := s.LUNs[fx.Grown.UUID]; l != nil {
			from = l.Size // no host has written what the file has beyond it
		}
		return n.growFiles(fx.Grown, from)
	case fx.Resized != nil:
		return n.growFiles(fx.Resized, fx.Resized.Size)
	}
	return nil
}

// begun finds out whether a LUN that is prepared again is there. Its file is in the tables, and may
// be in the middle of being copied to: it is created again only if it is not the LUN's, and nothing
// uses it.
func (n *Node) begun(v *store.BackingVolume, l *meta.LUN, joining bool) (done bool, err error) {
	f, err := v.LUN(l.UUID)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if f.Size == l.Size && (joining || !v.Births() || f.Known && f.Born == l.Born) {
		return true, nil
	}
	n.withdraw([]string{l.UUID}, nil)
	return false, nil
}

// noteOccupied remembers an object that was not made since something else has its name: that is not
// the object's, and does not go with it.
func (n *Node) noteOccupied(id string, err *error) {
	n.md.occupying.Lock()
	defer n.md.occupying.Unlock()
	if errors.Is(*err, store.ErrOccupied) {
		n.md.occupied[id] = true
	} else if *err == nil {
		delete(n.md.occupied, id)
	}
}

// copyOf names the object that an entry makes from another one's content.
func copyOf(fx *meta.Effect) string {
	switch l := fx.CreatedLUN; {
	case fx.CreatedSnapshot != nil && fx.CreatedSnapshot.Stage != meta.Empty:
		return fx.CreatedSnapshot.UUID
	case l != nil && l.Stage != meta.Empty && (l.SourceSnapshot != "" || l.SourceLUN != ""):
		return l.UUID
	}
	return ""
}

// growFiles makes room in the file of a LUN that has from bytes, and in its bits, or changes
// nothing that a host sees.
func (n *Node) growFiles(l *meta.LUN, from int64) error {
	if e := n.entryOf(l.UUID); e != nil {
		if err := e.bits.Grow(l.Size); err != nil && !errors.Is(err, store.ErrShrink) {
			return err
		}
	}
	v, err := n.store.Volume(l.Volume)
	if err != nil {
		return err
	}
	return v.ResizeLUN(l.UUID, from, l.Size)
}

// removeFiles removes what the durable state no longer names.
func (n *Node) removeFiles(fx *meta.Effect) {
	if fx.RemovedLUN == "" && fx.RemovedSnapshot == "" {
		return
	}
	n.endCopies(fx.RemovedLUN, fx.RemovedSnapshot)
	v, err := n.store.Volume(fx.RemovedVolume)
	if err != nil {
		n.log.Error("cannot remove the file of a deleted object", "lun", fx.RemovedLUN, "snapshot", fx.RemovedSnapshot, "err", err)
		return
	}
	remove := func(what, id string, f func(string) error) {
		if id == "" {
			return
		}
		if n.md.occupied[id] {
			delete(n.md.occupied, id)
			return
		}
		if err := f(id); err != nil {
			next := "this node removes the file when it starts again"
			if !v.Births() {
				next = "delete the file by hand, because its filesystem does not support extended user attributes"
			}
			n.log.Error("a file of cannot remove the file of a deleted object: "+next, what, id, "err", err)
		}
	}
	remove("lun", fx.RemovedLUN, v.DeleteLUN)
	remove("snapshot", fx.RemovedSnapshot, v.DeleteSnapshot)
}

// reconcileFiles brings files and metadata together at start: missing files of LUNs that were being
// made are made, and what a deletion has left is removed. Other files without metadata are reported
// as orphans and never touched. trusted: nothing is known against this store.
func (n *Node) reconcileFiles(have map[fileKey]store.Info, trusted bool) error {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	for k, f := range have {
		if n.born(k) == nil {
			n.orphan(k, &f, trusted)
		}
	}
	for _, l := range n.md.state.LUNs {
		if _, ok := have[lunKey(l)]; ok || l.Stage == meta.Ready { // a misfit
			continue
		}
		born := l.Born
		if l.SourceSnapshot != "" || l.SourceLUN != "" {
			born = store.NoBirth // it has its place, and is not the copy that it has to be
		}
		v, err := n.store.Volume(l.Volume)
		if err == nil {
			err = v.CreateLUN(l.UUID, l.Size, born)
		}
		if errors.Is(err, store.ErrNoSpace) {
			continue // the one that wants it asks again; the others are there
		}
		if err != nil {
			return err
		}
	}
	if err := n.standIns(have); err != nil {
		return err
	}
	if err := n.markFiles(have); err != nil {
		return err
	}
	if err := n.publish(); err != nil {
		return err
	}
	n.m.SetUnits(n.boottime(), n.unitInfos())
	for id, e := range n.md.tables.Load().units {
		if k := e.bits.Unreadable(); k > 0 {
			n.log.Warn("write-intent bits cannot be read; counting them as set", "lun", e.lun.UUID, "blocks", k)
		}
		n.m.LoadIntents(id, e.bits.Dirty())
	}
	return nil
}

// born is the birth of the object that the state has in a place, nil if it has none there.
func (n *Node) born(k fileKey) *uint64 {
	if s := n.md.state.Snapshots[k.id]; k.snapshot && s != nil && s.Volume == k.volume {
		return &s.Born
	}
	if l := n.md.state.LUNs[k.id]; !k.snapshot && l != nil && l.Volume == k.volume {
		return &l.Born
	}
	return nil
}

// orphan deals with a file that the state does not name. What was born when the state was not older
// than it is now has been deleted since, and only its file could not be. What was born later, or at
// an unknown time, may be needed: this metadata may be an older copy.
func (n *Node) orphan(k fileKey, f *store.Info, trusted bool) {
	log := n.log.With("uuid", k.id, "volume", meta.VolumeName(k.volume), "snapshot", k.snapshot)
	if !trusted || !f.Known || f.Born == store.NoBirth || f.Born > n.md.state.Index {
		log.Warn("a file belongs to no object in the metadata (an orphan); keeping the file, because the metadata may be an older copy")
		return
	}
	v, err := n.store.Volume(k.volume)
	switch {
	case err != nil:
	case k.snapshot:
		err = v.DeleteSnapshot(k.id)
	default:
		err = v.DeleteLUN(k.id)
	}
	if err != nil {
		log.Error("cannot remove the file of a deleted object; trying again when this node starts again", "err", err)
		return
	}
	log.Info("removed the file of a deleted object", "born", f.Born, "index", n.md.state.Index)
}

// markFiles gives images of earlier releases the birth that the state has for them. What is being
// copied to this node gets it with the file that the next install makes, and a misfit likewise.
func (n *Node) markFiles(have map[fileKey]store.Info) error {
	copying, err := n.loadCopying()
	if err != nil {
		return err
	}
	for k, f := range have {
		born := n.born(k)
		if f.Known || born == nil || *born == store.NoBirth || n.isMisfit(k.id) || copying[k.id] {
			continue
		}
		v, err := n.store.Volume(k.volume)
		switch {
		case err != nil:
		case k.snapshot:
			err = v.MarkSnapshot(k.id, *born)
		default:
			err = v.MarkLUN(k.id, *born)
		}
		if err != nil {
			n.log.Warn("cannot mark a file with the entry that created it; trying again when this node starts again", "uuid", k.id, "err", err)
		}
	}
	return nil
}
