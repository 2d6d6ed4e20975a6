package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/gemel-storage/gemel/target/meta"
	"github.com/gemel-storage/gemel/target/pair"
)

// Buckets of meta.db: the node's own life, and the replicated metadata by object.
var (
	bucketLife      = []byte("life")
	bucketMeta      = []byte("meta")
	bucketLUNs      = []byte("luns")
	bucketSnapshots = []byte("snapshots")
	bucketHosts     = []byte("hosts")
	bucketCopying   = []byte("copying")
	keyLife         = []byte("life")
	keyHead         = []byte("head")
)

// life is what a node remembers of itself.
type life struct {
	Epoch       uint64           `json:"epoch"`            // last one acted on (R2)
	Record      *pair.Record     `json:"record,omitempty"` // that the epoch is of
	Acted       *pair.Record     `json:"acted,omitempty"`  // the last one that named the process of then
	Life        pair.Life        `json:"life"`
	Incarnation pair.Incarnation `json:"incarnation"` // of the last process

	Mark    uint64            `json:"mark,omitempty"`    // of the backing volumes beside the default one, moved on with each change of this
	Volumes map[string]string `json:"volumes,omitempty"` // their ids, by name
}

type head struct {
	Index      uint64 `json:"index"`
	Generation uint64 `json:"generation"`
}

func (n *Node) loadLife() (l life, err error) {
	err = n.store.DB().View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketLife)
		if b == nil {
			return nil
		}
		return meta.Decode(b.Get(keyLife), &l)
	})
	if err != nil {
		return l, fmt.Errorf("node state: %w%s", err, wayOut(err))
	}
	return l, nil
}

func (n *Node) updateLife(f func(*life)) error {
	return n.store.DB().Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketLife)
		if err != nil {
			return err
		}
		var l life
		if v := b.Get(keyLife); v != nil {
			if err := json.Unmarshal(v, &l); err != nil {
				return err
			}
		}
		f(&l)
		if err := n.mark(&l); err != nil {
			return err
		}
		return put(b, keyLife, l)
	})
}

func (n *Node) saveIncarnation(inc pair.Incarnation) error {
	return n.updateLife(func(l *life) { l.Incarnation = inc })
}

// saveEpoch makes a record durable that the node is about to act on, and with it, in one step, the machine's own state as saveLife does.
func (n *Node) saveEpoch(r *pair.Record, acts bool, id uint64, x pair.Life) error {
	n.lifeMu.Lock()
	defer n.lifeMu.Unlock()
	err := n.updateLife(func(l *life) {
		if id >= n.lifeID {
			l.Life = x
		}
		if r.Epoch < l.Epoch {
			return
		}
		if l.Epoch, l.Record = r.Epoch, r; acts {
			l.Acted = r
		}
	})
	if err == nil {
		n.lifeID = max(n.lifeID, id)
	}
	return err
}

// saveLife makes the machine's own state durable. Saves can overtake each other: a lower number never replaces a higher one.
func (n *Node) saveLife(id uint64, x pair.Life) error {
	n.lifeMu.Lock()
	defer n.lifeMu.Unlock()
	if id < n.lifeID {
		return nil
	}
	if err := n.updateLife(func(l *life) { l.Life = x }); err != nil {
		return err
	}
	n.lifeID = id
	return nil
}

// The bucket of objects that are being copied here: their content is not of the source's lineage until a resync has
// ended. An object is named before its file is made.
func (n *Node) loadCopying() (ids map[string]bool, err error) {
	ids = map[string]bool{}
	err = n.store.DB().View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bucketCopying); b != nil {
			return b.ForEach(func(k, _ []byte) error {
				ids[string(k)] = true
				return nil
			})
		}
		return nil
	})
	return ids, err
}

func (n *Node) addCopying(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return n.store.DB().Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketCopying)
		for _, id := range ids {
			if err == nil {
				err = b.Put([]byte(id), []byte{1})
			}
		}
		return err
	})
}

// clearCopying ends a resync: everything is here, durably.
func (n *Node) clearCopying() error {
	return n.store.DB().Update(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketCopying) == nil {
			return nil
		}
		return tx.DeleteBucket(bucketCopying)
	})
}

func put(b *bbolt.Bucket, key []byte, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, raw)
}

// loadState reads the replicated metadata.
func (n *Node) loadState() (*meta.State, error) {
	s := meta.NewState()
	err := n.store.DB().View(func(tx *bbolt.Tx) error {
		if err := tx.ForEach(known); err != nil {
			return err
		}
		if b := tx.Bucket(bucketMeta); b != nil {
			var h head
			if err := meta.Decode(b.Get(keyHead), &h); err != nil {
				return err
			}
			s.Index, s.Generation = h.Index, h.Generation
		}
		if err := loadAll(tx, &n.sizes, bucketLUNs, s.LUNs); err != nil {
			return err
		}
		if err := loadAll(tx, &n.sizes, bucketSnapshots, s.Snapshots); err != nil {
			return err
		}
		return loadAll(tx, &n.sizes, bucketHosts, s.Hosts)
	})
	if err != nil {
		return nil, fmt.Errorf("metadata: %w%s", err, wayOut(err))
	}
	n.metaBytes.Store(n.sizes.total)
	return s, nil
}

// known refuses a bucket that a newer release has made.
func known(name []byte, _ *bbolt.Bucket) error {
	for _, b := range [][]byte{bucketLife, bucketMeta, bucketLUNs, bucketSnapshots, bucketHosts, bucketCopying} {
		if bytes.Equal(name, b) {
			return nil
		}
	}
	return fmt.Errorf("%w: there is a bucket %q, which is not known here", meta.ErrNewer, name)
}

// wayOut is what to do about a state folder that a newer release has written.
func wayOut(err error) string {
	if errors.Is(err, meta.ErrNewer) {
		return ": run the release that wrote the state-dir, or a newer one; or start with an empty state-dir and empty backing volumes, to have everything copied from the peer"
	}
	return ""
}

func loadAll[T any](tx *bbolt.Tx, z *sizes, name []byte, into map[string]*T) error {
	b := tx.Bucket(name)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		t := new(T)
		if err := meta.Decode(v, t); err != nil {
			return fmt.Errorf("%s/%s: %w", name, k, err)
		}
		into[string(k)] = t
		z.note(name, string(k), len(v))
		return nil
	})
}

// persist makes what an entry touched durable, with the index, in one transaction.
func (n *Node) persist(fx *meta.Effect) error {
	defer func() { n.metaBytes.Store(n.sizes.total) }()
	return n.store.DB().Update(func(tx *bbolt.Tx) error {
		if err := saveHead(tx, n.state); err != nil {
			return err
		}
		if err := saveSome(tx, &n.sizes, bucketLUNs, fx.LUNs, n.state.LUNs); err != nil {
			return err
		}
		if err := saveSome(tx, &n.sizes, bucketSnapshots, fx.Snapshots, n.state.Snapshots); err != nil {
			return err
		}
		return saveSome(tx, &n.sizes, bucketHosts, fx.Hosts, n.state.Hosts)
	})
}

func saveHead(tx *bbolt.Tx, s *meta.State) error {
	b, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	return put(b, keyHead, head{s.Index, s.Generation})
}

// saveSome writes the named objects and deletes those that are gone.
func saveSome[T any](tx *bbolt.Tx, z *sizes, name []byte, keys []string, from map[string]*T) error {
	b, err := tx.CreateBucketIfNotExists(name)
	if err != nil {
		return err
	}
	for _, k := range keys {
		v := from[k]
		if v == nil {
			if err := b.Delete([]byte(k)); err != nil {
				return err
			}
			z.note(name, k, 0)
			continue
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := b.Put([]byte(k), raw); err != nil {
			return err
		}
		z.note(name, k, len(raw))
	}
	return nil
}

// persistAll replaces all metadata.
func (n *Node) persistAll(s *meta.State) error {
	var z sizes
	err := n.store.DB().Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketLUNs, bucketSnapshots, bucketHosts} {
			if tx.Bucket(name) != nil {
				if err := tx.DeleteBucket(name); err != nil {
					return err
				}
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
		return saveSome(tx, &z, bucketHosts, keys(s.Hosts), s.Hosts)
	})
	if err == nil {
		n.sizes = z
		n.metaBytes.Store(z.total)
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
