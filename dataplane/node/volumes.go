package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// featureVolumes on the link: the other node knows that a LUN names its backing volume. One that
// does not would put it elsewhere.
const featureVolumes = "volumes"

// featureParts on the link: the other node takes the metadata in parts (pair.MsgMetaPart). One that
// does not takes what fits into a frame.
const featureParts = "metadata-parts"

func (c *Config) features() []string {
	if c.earlier {
		return nil
	}
	return []string{featureVolumes, featureParts, featureScrub, featureOwnership, featureWarm, featureCopies, featureGroups, featureBatch, featureTiers}
}

// peerKnows tells whether the release of the other node has a feature; false without a link.
func (n *Node) peerKnows(feature string) bool {
	neg, ok := n.peer.link.Negotiated(n.peer.linkN.Load())
	return ok && neg.Has(feature)
}

// linkKnows is peerKnows where a release before is treated in another way, and not only asked for
// less: a link that has gone since the caller looked says nothing of the other node. errNoLink.
func (n *Node) linkKnows(features ...string) (bool, error) {
	neg, ok := n.peer.link.Negotiated(n.peer.linkN.Load())
	if !ok {
		return false, errNoLink
	}
	return !slices.ContainsFunc(features, func(f string) bool { return !neg.Has(f) }), nil
}

// misread tells that the other node would put LUNs elsewhere: they lie in backing volumes, and its
// release knows one only.
func (n *Node) misread(volumes map[string]int) bool {
	delete(volumes, "")
	return len(volumes) > 0 && !n.peerKnows(featureVolumes)
}

// volumes are the backing volumes beside the default one, and the members of all of them, as the
// configuration has them: NAME=DIR and NAME/MEMBER=DIR.
func (c *Config) volumes() (out []store.BackingVolumeDir, members []store.MemberDir, err error) {
	var errs []error
	for _, s := range c.BackingVolumes {
		name, dir, ok := strings.Cut(s, "=")
		of, member, isMember := strings.Cut(name, "/")
		switch {
		case !ok:
			errs = append(errs, bad("backing-volume", "%q must be NAME=DIR or NAME/MEMBER=DIR", s))
		case isMember:
			members = append(members, store.MemberDir{Of: of, Name: member, Dir: dir})
		default:
			out = append(out, store.BackingVolumeDir{Name: name, Dir: dir})
		}
	}
	for _, id := range c.LostVolumes {
		if _, err := uuid.Parse(id); err != nil {
			errs = append(errs, bad("lost-volume", "%q is not the id of a member of a backing volume, which the message about the lost one names", id))
		}
	}
	if err := store.CheckVolumes(c.StateDir, out, members); err != nil {
		errs = append(errs, bad("backing-volume", "%v", err))
	}
	return out, members, errors.Join(errs...)
}

// checkVolumes compares the backing volumes with what the metadata here says of them. One that
// holds something has to be there and to be the one that it was; the error says which is not. One
// that was put back to an earlier state makes the store one that needs a full copy (R6), and so do
// metadata that were: doubt is why. As long as there is doubt nothing is written over it, so that
// the right volume may be put back.
func (n *Node) checkVolumes(l *nodeState) (doubt string, err error) {
	held := n.md.state.Volumes()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if name == "" {
			continue
		}
		what := fmt.Sprintf("backing volume %q, which holds %d LUNs and snapshots of this node", name, held[name])
		v, err := n.store.Volume(name)
		switch {
		case err != nil:
			errs = append(errs, bad("backing-volume", "%s, is missing from the flags: add --backing-volume %s=DIR with its directory; "+
				"or start with an empty state-dir and empty backing volumes to copy everything from the other node", what, name))
		case l.Volumes[name] != v.ID():
			errs = append(errs, bad("backing-volume", "%s, had the id %s, but the one in its directory has the id %s: mount the former one; "+
				"or start with an empty state-dir and empty backing volumes to copy everything from the other node", what, l.Volumes[name], v.ID()))
		case v.Mark() != l.Mark && v.Mark() != l.Mark+1: // it is written first: one step may be in doubt
			doubt = olderCopy(v, l)
		}
	}
	for _, v := range n.store.Directories() {
		n.own.markFloor = max(n.own.markFloor, v.Mark())
		if strings.Contains(v.Name(), "/") && l.Volumes[v.Name()] == v.ID() && v.Mark() < l.Mark {
			doubt = olderCopy(v, l)
		}
		if v.Mark() > l.Mark+1 { // also of one that holds nothing as far as these metadata say
			doubt = fmt.Sprintf("this node's metadata is an older copy (it has mark %d, backing volume %q has mark %d): put back the newest state-dir, or let the other node copy its data to this node", l.Mark, v.Name(), v.Mark())
		}
	}
	if older := n.store.DB().Older(); older != "" {
		doubt = older
	}
	n.own.doubt.Store(doubt != "")
	return doubt, errors.Join(errs...)
}

func olderCopy(v *store.BackingVolume, l *nodeState) string {
	return fmt.Sprintf("backing volume %q is an older copy (it has mark %d, this node's metadata has mark %d): put back the newest copy, or let the other node copy its data to this node", v.Name(), v.Mark(), l.Mark)
}

// mark has the backing volumes move on with the node's own state, and remembers which they are. The
// caller is about to save l.
func (n *Node) mark(l *nodeState) error {
	volumes := n.store.Directories()
	if len(volumes) == 1 {
		return nil
	}
	l.Volumes = map[string]string{} // those that hold something are the same as before: see checkVolumes
	for _, v := range volumes[1:] {
		l.Volumes[v.Name()] = v.ID()
	}
	if n.own.doubt.Load() {
		return nil
	}
	next := l.Mark + 1
	if n.own.markFloor > next { // of one that held nothing, or nothing that counted
		next = n.own.markFloor + 1
	}
	if err := n.store.SetMarks(next); err != nil {
		return err
	}
	l.Mark = next
	return nil
}

// trustVolumes ends doubt: everything here has been copied from the peer.
func (n *Node) trustVolumes() error {
	if !n.own.doubt.CompareAndSwap(true, false) {
		return nil
	}
	n.store.DB().Settle()
	return n.updateState(func(*nodeState) {})
}

// lacking names the backing volumes that a state needs and this node does not have.
func (n *Node) lacking(s *meta.State) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.Volumes())) {
		if _, err := n.store.Volume(name); err != nil {
			errs = append(errs, fmt.Errorf("the pair has LUNs in backing volume %q, which node %s does not have: start node %s with --backing-volume %s=DIR", name, n.self, n.self, name))
		}
	}
	return errors.Join(errs...)
}

type prepareVolume struct {
	Volume string `json:"volume"`
	Copies bool   `json:"copies,omitempty"` // snapshots and clones are to be made there; a node of 0.1.0 does not look
}

// prepareVolumeHere refuses what a backing volume here is not for.
func (n *Node) prepareVolumeHere(req prepareVolume) error {
	if err := n.volumeHere(req.Volume); err != nil || !req.Copies {
		return err
	}
	return n.copiesHere(req.Volume)
}

// volumeHere refuses a backing volume that this node lacks, by name.
func (n *Node) volumeHere(name string) error {
	if _, err := n.store.Volume(name); err != nil {
		return fmt.Errorf("volume: node %s: %w; start the node with --backing-volume %s=DIR, or name another backing volume: %w", n.self, err, name, meta.ErrInvalid)
	}
	return nil
}

// volumeOnBoth refuses a backing volume that a member lacks, or a node that is about to become one,
// and keeps an entry out of the log that a node of an earlier release would carry out in the wrong
// place.
func (n *Node) volumeOnBoth(ctx context.Context, name string) error {
	if err := n.volumeHere(name); err != nil || name == "" {
		return err
	}
	v := n.View()
	both := v.Record.Both()
	if v.Linked && !n.peerKnows(featureVolumes) {
		return fmt.Errorf("the release of node %s supports one backing volume only: upgrade node %s: %w", n.self.Peer(), n.self.Peer(), control.ErrUnavailable)
	}
	if both || v.Linked {
		switch err := n.call(ctx, "prepare_volume", prepareVolume{Volume: name}, nil); {
		case err == nil || errors.Is(err, meta.ErrInvalid):
			return err
		case both || !errors.Is(err, errNoLink):
			return fmt.Errorf("the other node: %w: %w", err, control.ErrUnavailable)
		}
	}
	if p := n.peer.capacity.Load(); p != nil && !p.has(name) {
		return fmt.Errorf("volume: node %s, which is not connected, has no backing volume %q, so it could not become a member again: %w", n.self.Peer(), name, meta.ErrInvalid)
	}
	return nil
}

// capacity of a node. Total and Free are those of the default volume: all that earlier releases say
// and know.
type capacity struct {
	Total   int64             `json:"total"`
	Free    int64             `json:"free"`
	Volumes map[string]volume `json:"volumes,omitempty"` // every one, by name
}

// volume is what a node says of one of its backing volumes.
type volume struct {
	Total   int64 `json:"total"`
	Free    int64 `json:"free"`
	Reflink bool  `json:"reflink"`
}

// all are the volumes of a node, of an earlier release perhaps.
func (c *capacity) all() map[string]volume {
	if len(c.Volumes) == 0 {
		return map[string]volume{store.DefaultBackingVolume: {Total: c.Total, Free: c.Free, Reflink: true}}
	}
	return c.Volumes
}

func (c *capacity) has(name string) bool {
	_, ok := c.all()[name]
	return ok
}

func (n *Node) capacity() (c capacity, err error) {
	c.Volumes = map[string]volume{}
	for _, v := range n.store.Volumes() {
		total, free, verr := v.Capacity()
		if verr != nil {
			err = errors.Join(err, verr)
			continue
		}
		c.Volumes[v.Name()] = volume{total, free, v.Reflink()}
	}
	first := c.Volumes[store.DefaultBackingVolume]
	c.Total, c.Free = first.Total, first.Free
	return c, err
}

// pairCapacity is, of each backing volume, the minimum over the members (R14); the peer's last
// answer counts for a moment without link.
func (n *Node) pairCapacity(ctx context.Context) ([]*targetv1.BackingVolume, error) {
	own, err := n.capacity()
	v := n.View()
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	var c capacity
	if err := n.call(ctx, "capacity", struct{}{}, &c); err == nil {
		n.peer.capacity.Store(&c)
	}
	return merge(n.self.String(), own.Volumes, n.self.Peer().String(), n.peer.capacity.Load(), v.Record.Both()), err
}

// merge what two nodes say; peer is nil as long as it has not said anything. Of one that is no
// member it only counts what it lacks.
func merge(self string, own map[string]volume, other string, peer *capacity, member bool) (out []*targetv1.BackingVolume) {
	names := maps.Clone(own)
	if peer != nil && member {
		maps.Copy(names, peer.all())
	}
	for _, name := range slices.SortedFunc(maps.Keys(names), byName) {
		b := &targetv1.BackingVolume{Name: name}
		add := func(node string, v volume, ok bool) {
			switch {
			case !ok:
				b.Lacks = append(b.Lacks, node)
				return
			case len(b.Nodes) == 0:
				b.CapacityBytes, b.FreeBytes, b.Reflink = uint64(v.Total), uint64(v.Free), v.Reflink
			default:
				b.CapacityBytes, b.FreeBytes, b.Reflink = min(b.CapacityBytes, uint64(v.Total)), min(b.FreeBytes, uint64(v.Free)), b.Reflink && v.Reflink
			}
			b.Nodes = append(b.Nodes, node)
		}
		v, ok := own[name]
		add(self, v, ok)
		if peer != nil {
			if v, ok = peer.all()[name]; member || !ok {
				add(other, v, ok)
			}
		}
		slices.Sort(b.Nodes)
		out = append(out, b)
	}
	return out
}

// byName puts the default volume first.
func byName(a, b string) int {
	if (a == store.DefaultBackingVolume) != (b == store.DefaultBackingVolume) {
		if a == store.DefaultBackingVolume {
			return -1
		}
		return 1
	}
	return strings.Compare(a, b)
}

// reflinks: every backing volume here can share extents.
func (n *Node) reflinks() bool {
	return !slices.ContainsFunc(n.store.Volumes(), func(v *store.BackingVolume) bool { return !v.Reflink() })
}

// reflink tells whether copies of a LUN share extents here.
func (n *Node) reflink(lun string) bool {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	l := n.md.state.LUNs[lun]
	if l == nil {
		return false
	}
	v, err := n.store.Volume(l.Volume)
	return err == nil && v.Reflink()
}
