package node

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// install replaces this node's metadata by the source's and brings the set of files in line. What
// the source does not have goes. What this node lacks, or has as another object under the same id,
// is made empty and named as being copied, durably, before it is made: until the resync has ended
// its content counts for nothing.
func (n *Node) install(link uint64, msg *pair.Msg) {
	res := scsi.OK
	units, full, err := n.installState(msg)
	n.own.refused.Store(nil)
	if err != nil {
		n.log.Error("cannot install the metadata of the other node", "err", err)
		text := err.Error()
		n.own.refused.Store(&text)
		res = scsi.Failed
	}
	n.do(func(m *pair.Machine, now int64) { m.Installed(now, link, uint64(msg.Aux), units, full, res) })
}

func (n *Node) installState(msg *pair.Msg) ([]pair.UnitInfo, []pair.LUNID, error) {
	if err := checkSum(msg); err != nil {
		return nil, nil, err
	}
	s := meta.NewState()
	if err := meta.Decode(msg.Meta, s); err != nil {
		return nil, nil, fmt.Errorf("this node cannot decode the metadata of node %s: %w%s", n.self.Peer(), err, n.fix(err))
	}
	if s.Index != uint64(msg.Aux) {
		return nil, nil, fmt.Errorf("the metadata has index %d, and was announced with index %d", s.Index, msg.Aux)
	}
	if err := n.lacking(s); err != nil {
		return nil, nil, err
	}
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	n.dropAllCopies() // first: a copy that goes on would write over what the source sends
	if err := n.addCopying(n.unsealed(s)); err != nil {
		return nil, nil, err
	}
	if err := n.makeFiles(s); err != nil {
		return nil, nil, err
	}
	if err := n.persistAll(s); err != nil {
		return nil, nil, err
	}
	old := n.md.state
	n.md.state = s
	if err := n.publish(); err != nil {
		return nil, nil, err
	}
	for id, l := range old.LUNs {
		if now := s.LUNs[id]; now == nil || now.Volume != l.Volume {
			n.removeFiles(&meta.Effect{RemovedLUN: id, RemovedVolume: l.Volume})
		}
	}
	for id, x := range old.Snapshots {
		if now := s.Snapshots[id]; now == nil || now.Volume != x.Volume {
			n.removeFiles(&meta.Effect{RemovedSnapshot: id, RemovedVolume: x.Volume})
		}
	}
	copying, err := n.loadCopying()
	if err != nil {
		return nil, nil, err
	}
	var full []pair.LUNID
	for id := range copying {
		if k, err := parseID(id); err == nil {
			full = append(full, k)
		}
	}
	return n.unitInfos(), full, nil
}

// errDamaged: what came in parts is not what was sent.
var errDamaged = errors.New("the metadata of the other node was damaged on the way; asking again")

// checkSum compares metadata that came in parts with the checksum of the whole.
func checkSum(msg *pair.Msg) error {
	if msg.Sum == nil {
		return nil
	}
	if sum := sha256.Sum256(msg.Meta); !bytes.Equal(sum[:], msg.Sum) {
		return fmt.Errorf("%w (%d bytes)", errDamaged, len(msg.Meta))
	}
	return nil
}

// fix is what to do about metadata of a newer release.
func (n *Node) fix(err error) string {
	if errors.Is(err, meta.ErrNewer) {
		return fmt.Sprintf(": upgrade node %s", n.self)
	}
	return ""
}

// makeFiles makes the files that the state names and the store does not hold as the same object.
// What the last entry here made is not the same: the source may have died or been cut off before it
// did that entry, and has done it later, when the LUN held something else, or another one in its
// place. There is one such entry at most (R9).
func (n *Node) makeFiles(s *meta.State) error {
	have, err := n.files()
	if err != nil {
		return err
	}
	var luns, snaps []string
	for id, l := range s.LUNs {
		f, ok := have[lunKey(l)]
		// What a file has beyond the LUN that was here is not what the source has there.
		if old := n.md.state.LUNs[id]; !ok || old == nil || old.Born != l.Born || old.Volume != l.Volume || old.Born == n.md.state.Index ||
			f.Size > min(old.Size, l.Size) || f.Known && f.Born != l.Born || n.isMisfit(id) {
			luns = append(luns, id)
		}
	}
	for id, sn := range s.Snapshots {
		f, ok := have[snapshotKey(sn)]
		if old := n.md.state.Snapshots[id]; !ok || old == nil || old.Born != sn.Born || old.Volume != sn.Volume || old.Born == n.md.state.Index ||
			f.Known && f.Born != sn.Born || n.isMisfit(id) {
			snaps = append(snaps, id)
		}
	}
	if err := n.addCopying(append(luns, snaps...)); err != nil {
		return err
	}
	n.withdraw(luns, snaps)
	for _, id := range luns {
		l := s.LUNs[id]
		v, err := n.store.Volume(l.Volume)
		if err == nil && n.born(lunKey(l)) != nil { // else what is there is no LUN of this node: the store knows what to do with it
			err = v.DeleteLUN(id)
		}
		if err == nil {
			err = v.CreateLUN(id, l.Size, l.Born)
		}
		if err == nil {
			err = v.CleanIntents(id, l.Size)
		}
		if err != nil {
			return err
		}
	}
	for _, id := range snaps {
		sn := s.Snapshots[id]
		v, err := n.store.Volume(sn.Volume)
		if err == nil && n.born(snapshotKey(sn)) != nil {
			err = v.DeleteSnapshot(id)
		}
		if err == nil {
			err = v.CreateSnapshot(id, sn.Size, sn.Born)
		}
		if err != nil {
			return err
		}
	}
	n.dropMisfits(append(luns, snaps...)...)
	for _, l := range s.LUNs {
		if have[lunKey(l)].Size < l.Size {
			if err := n.growFiles(l, l.Size); err != nil {
				return err
			}
		}
	}
	return nil
}

// withdraw takes objects out of the tables, so that those made again are opened again.
func (n *Node) withdraw(luns, snaps []string) {
	old := n.md.tables.Load()
	t := &tables{units: map[pair.LUNID]*unitEntry{}, snapshots: map[pair.LUNID]*store.File{}, hosts: old.hosts}
	gone := map[string]bool{}
	for _, id := range append(luns, snaps...) {
		gone[id] = true
	}
	for k, e := range old.units {
		if gone[e.lun.UUID] {
			n.closeLater(e.close)
		} else {
			t.units[k] = e
		}
	}
	for k, f := range old.snapshots {
		if gone[uuid.UUID(k).String()] {
			n.closeLater(f.Close)
		} else {
			t.snapshots[k] = f
		}
	}
	n.md.tables.Store(t)
}

// objectsLocked names what both nodes must hold alike; prepared: also snapshots that are not
// committed yet. A resync brings those too: the commit may come when it has ended, and then the
// joiner's must be complete. One that could not be made here is not there to be copied, and will be
// aborted. The caller holds md.mu.
func (n *Node) objectsLocked(prepared bool) (objs []pair.CopyObject) {
	for _, l := range n.md.state.SortedLUNs() {
		if id, err := parseID(l.UUID); err == nil && (l.Stage == meta.Ready || (prepared || l.Stage != meta.Copying) && l.Stage != meta.Empty && n.file(id) != nil) {
			objs = append(objs, pair.CopyObject{ID: id, Size: l.Size, Born: l.Born})
		}
	}
	for _, s := range n.md.state.SortedSnapshots() {
		if id, err := parseID(s.UUID); err == nil && (s.Stage == meta.Ready || prepared && s.Stage != meta.Empty && n.file(id) != nil) {
			objs = append(objs, pair.CopyObject{ID: id, Size: s.Size, Born: s.Born})
		}
	}
	return objs
}

// listForResync lists them again once all that was known has been copied.
func (n *Node) listForResync() {
	n.md.mu.Lock()
	objs := n.objectsLocked(true)
	n.copies.lists(objs)
	n.md.mu.Unlock()
	n.do(func(m *pair.Machine, now int64) { m.ResyncObjects(now, objs) })
}
