package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/longlock"
)

// Buckets of meta.db: the node's own life, and the replicated metadata by object.
const (
	bucketState     = "life"
	bucketMeta      = "meta"
	bucketLUNs      = "luns"
	bucketSnapshots = "snapshots"
	bucketHosts     = "hosts"
	bucketGroups    = "groups"
	bucketCopying   = "copying"
	keyState        = "life"
	keyHead         = "head"
)

// nodeState is what a node remembers of itself.
type nodeState struct {
	Epoch       uint64           `json:"epoch"`            // last one acted on (R2)
	Record      *pair.Record     `json:"record,omitempty"` // that the epoch is of
	Acted       *pair.Record     `json:"acted,omitempty"`  // the last one that named the process of then
	Pair        pair.State       `json:"life"`
	Incarnation pair.Incarnation `json:"incarnation"` // of the last process

	Mark    uint64            `json:"mark,omitempty"`    // of the backing volumes beside the default one, moved on with each change of this
	Volumes map[string]string `json:"volumes,omitempty"` // their ids, by name
}

type head struct {
	Index      uint64       `json:"index"`
	Generation uint64       `json:"generation"`
	Policy     *meta.Policy `json:"policy,omitempty"`
}

// errNoState: a node writes its own state before anything else.
var errNoState = errors.New("the node's own state is missing from the metadata")

func (n *Node) loadState() (l nodeState, err error) {
	err = n.store.DB().View(func(tx *store.Tx) error {
		raw, err := tx.Get(bucketState, keyState)
		if err != nil || raw != nil {
			return errors.Join(err, n.decode(raw, &l))
		}
		if others, err := tx.Buckets(); err != nil || len(others) > 0 {
			return errors.Join(err, n.store.DB().Damaged(errNoState))
		}
		return nil
	})
	if err != nil {
		return l, fmt.Errorf("node state: %w%s", err, wayOut(err))
	}
	return l, nil
}

// decode reads an entry of the database. What is neither what this release has written nor what a
// newer one would is damage.
func (n *Node) decode(raw []byte, into any) error {
	err := meta.Decode(raw, into)
	if err == nil || errors.Is(err, meta.ErrNewer) {
		return err
	}
	return n.store.DB().Damaged(err)
}

func (n *Node) updateState(f func(*nodeState)) error {
	n.own.changing.Lock() // the database is not locked while disks of backing volumes are waited for
	defer n.own.changing.Unlock()
	var l nodeState
	err := n.store.DB().View(func(tx *store.Tx) error {
		raw, err := tx.Get(bucketState, keyState)
		if err == nil && raw != nil {
			err = json.Unmarshal(raw, &l)
		}
		return err
	})
	if err != nil {
		return err
	}
	f(&l)
	if err := n.mark(&l); err != nil {
		return err
	}
	return n.store.DB().Update(func(tx *store.Tx) error { return put(tx, bucketState, keyState, l) })
}

func (n *Node) saveIncarnation(inc pair.Incarnation) error {
	return n.updateState(func(l *nodeState) { l.Incarnation = inc })
}

// saved is what was last made durable of the machine's own state.
type saved struct {
	mu longlock.Mutex
	id uint64 // its number
}

// saveEpoch makes a record durable that the node is about to act on, and with it, in one step, the
// machine's own state as saveState does.
func (n *Node) saveEpoch(r *pair.Record, acts bool, id uint64, x pair.State) error {
	n.own.saved.mu.Lock()
	defer n.own.saved.mu.Unlock()
	err := n.updateState(func(l *nodeState) {
		if id >= n.own.saved.id {
			l.Pair = x
		}
		if r.Epoch < l.Epoch {
			return
		}
		if l.Epoch, l.Record = r.Epoch, r; acts {
			l.Acted = r
		}
	})
	if err == nil {
		n.own.saved.id = max(n.own.saved.id, id)
	}
	return err
}

// saveState makes the machine's own state durable. Saves can overtake each other: a lower number
// never replaces a higher one.
func (n *Node) saveState(id uint64, x pair.State) error {
	n.own.saved.mu.Lock()
	defer n.own.saved.mu.Unlock()
	if id < n.own.saved.id {
		return nil
	}
	if err := n.updateState(func(l *nodeState) { l.Pair = x }); err != nil {
		return err
	}
	n.own.saved.id = id
	return nil
}

// The bucket of objects that are being copied here: their content is not of the source's lineage
// until a resync has ended. An object is named before its file is made.
func (n *Node) loadCopying() (ids map[string]bool, err error) {
	ids = map[string]bool{}
	err = n.store.DB().View(func(tx *store.Tx) error {
		return tx.Each(bucketCopying, func(id string, _ []byte) error {
			ids[id] = true
			return nil
		})
	})
	return ids, err
}

func (n *Node) addCopying(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return n.store.DB().Update(func(tx *store.Tx) error { return nameCopying(tx, ids) })
}

// clearCopying ends a resync: everything is here, durably, but for what was missed.
func (n *Node) clearCopying(missed []string) error {
	return n.store.DB().Update(func(tx *store.Tx) error {
		if err := tx.Drop(bucketCopying); err != nil {
			return err
		}
		return nameCopying(tx, missed)
	})
}

func nameCopying(tx *store.Tx, ids []string) error {
	for _, id := range ids {
		if err := tx.Put(bucketCopying, id, []byte{1}); err != nil {
			return err
		}
	}
	return nil
}

func put(tx *store.Tx, bucket, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Put(bucket, key, raw)
}

// loadMetadata reads the replicated metadata.
func (n *Node) loadMetadata() (*meta.State, error) {
	s := meta.NewState()
	err := n.store.DB().View(func(tx *store.Tx) error {
		if err := known(tx); err != nil {
			return err
		}
		raw, err := tx.Get(bucketMeta, keyHead)
		if err == nil && raw != nil {
			var h head
			err = n.decode(raw, &h)
			s.Index, s.Generation, s.Policy = h.Index, h.Generation, h.Policy
		}
		if err != nil {
			return err
		}
		if err := loadAll(n, tx, bucketLUNs, s.LUNs); err != nil {
			return err
		}
		if err := loadAll(n, tx, bucketSnapshots, s.Snapshots); err != nil {
			return err
		}
		if err := loadAll(n, tx, bucketGroups, s.Groups); err != nil {
			return err
		}
		return loadAll(n, tx, bucketHosts, s.Hosts)
	})
	if err != nil {
		return nil, fmt.Errorf("metadata: %w%s", err, wayOut(err))
	}
	n.md.bytes.Store(n.md.sizes.total)
	return s, nil
}

// known refuses a bucket that a newer release has made.
func known(tx *store.Tx) error {
	names, err := tx.Buckets()
	for _, name := range names {
		if !slices.Contains([]string{bucketState, bucketMeta, bucketLUNs, bucketSnapshots, bucketHosts, bucketGroups, bucketCopying}, name) {
			return fmt.Errorf("%w: it has a bucket %q", meta.ErrNewer, name)
		}
	}
	return err
}

// wayOut is what to do about a state folder that a newer release has written.
func wayOut(err error) string {
	if errors.Is(err, meta.ErrNewer) {
		return ": run the release that wrote the state-dir, or a newer one; or start with an empty state-dir and empty backing volumes to copy everything from the other node"
	}
	return ""
}

func loadAll[T any](n *Node, tx *store.Tx, bucket string, into map[string]*T) error {
	return tx.Each(bucket, func(key string, value []byte) error {
		t := new(T)
		if err := n.decode(value, t); err != nil {
			return fmt.Errorf("%s/%s: %w", bucket, key, err)
		}
		into[key] = t
		n.md.sizes.note(bucket, key, len(value))
		return nil
	})
}

// persist makes what an entry touched in s durable, with the index, in one transaction.
func (n *Node) persist(s *meta.State, fx *meta.Effect) error {
	defer func() { n.md.bytes.Store(n.md.sizes.total) }()
	return n.store.DB().Update(func(tx *store.Tx) error {
		if err := saveHead(tx, s); err != nil {
			return err
		}
		if err := saveSome(tx, &n.md.sizes, bucketLUNs, fx.LUNs, s.LUNs); err != nil {
			return err
		}
		if err := saveSome(tx, &n.md.sizes, bucketSnapshots, fx.Snapshots, s.Snapshots); err != nil {
			return err
		}
		if err := saveSome(tx, &n.md.sizes, bucketGroups, fx.Groups, s.Groups); err != nil {
			return err
		}
		return saveSome(tx, &n.md.sizes, bucketHosts, fx.Hosts, s.Hosts)
	})
}

func saveHead(tx *store.Tx, s *meta.State) error {
	return put(tx, bucketMeta, keyHead, head{s.Index, s.Generation, s.Policy})
}

// saveSome writes the named objects and deletes those that are gone.
func saveSome[T any](tx *store.Tx, z *sizes, bucket string, keys []string, from map[string]*T) error {
	for _, k := range keys {
		v := from[k]
		if v == nil {
			if err := tx.Delete(bucket, k); err != nil {
				return err
			}
			z.note(bucket, k, 0)
			continue
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := tx.Put(bucket, k, raw); err != nil {
			return err
		}
		z.note(bucket, k, len(raw))
	}
	return nil
}

// persistAll replaces all metadata.
func (n *Node) persistAll(s *meta.State) error {
	var z sizes
	err := n.store.DB().Update(func(tx *store.Tx) error {
		for _, name := range []string{bucketLUNs, bucketSnapshots, bucketHosts, bucketGroups} {
			if err := tx.Drop(name); err != nil {
				return err
			}
		}
		if err := saveHead(tx, s); err != nil {
			return err
		}
		if err := saveSome(tx, &z, bucketLUNs, keys(s.LUNs), s.LUNs); err != nil {
			return err
		}
		if err := saveSome(tx, &z, bucketSnapshots, keys(s.Snapshots), s.Snapshots); err != nil {
			return err
		}
		if err := saveSome(tx, &z, bucketGroups, keys(s.Groups), s.Groups); err != nil {
			return err
		}
		return saveSome(tx, &z, bucketHosts, keys(s.Hosts), s.Hosts)
	})
	if err == nil {
		n.md.sizes = z
		n.md.bytes.Store(z.total)
	}
	return err
}

func keys[T any](m map[string]*T) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}
