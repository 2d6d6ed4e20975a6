package nodesim

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/dataplane/node"
)

// memberNames are those of the members of each node's backing volume, which get the numbers from 2
// on.
var memberNames = []string{"x", "y"}

// spread gives a node's backing volume members, beside the state directory.
func spread(c *node.Config, dir string) {
	c.StateDir, c.SharedFilesystem = filepath.Join(dir, "state"), true
	for _, m := range memberNames {
		c.BackingVolumes = append(c.BackingVolumes, "default/"+m+"="+filepath.Join(dir, m))
	}
}

// moveExtents moves extents of LUNs that hosts use between the places of node i.
func (w *world) moveExtents(rng *rand.Rand, i int) {
	for !w.isIdle() {
		w.pause(rng, 0, 150*time.Millisecond)
		l := w.luns[rng.IntN(len(w.luns))]
		if w.shared != nil && rng.IntN(3) == 0 {
			l = w.shared
		}
		at := w.nodes[i].running()
		if at == nil {
			continue
		}
		if rng.IntN(20) == 0 {
			w.drainMember(rng, at.n, i)
		}
		extent, to := rng.Int64N(extents.Extents(int64(l.size))), uint8(1+rng.IntN(1+len(memberNames)))
		if err := at.n.MoveExtent(context.Background(), l.id, extent, to); err != nil {
			w.rare("an extent did not move")
			w.trace("node %s: %v", name(i), err)
			continue
		}
		w.rare("an extent moved")
	}
}

// drainMember begins the drain of a place, or ends the one that there is.
func (w *world) drainMember(rng *rand.Rand, n *node.Node, i int) {
	m := append([]string{"home"}, memberNames...)[rng.IntN(1+len(memberNames))]
	on := rng.IntN(2) == 0
	err := n.DrainMember(context.Background(), "default", m, on)
	w.trace("node %s: drain of %s, %v: %v", name(i), m, on, err)
	if err == nil && on {
		w.rare("a member drained")
	}
}

// content is what a node has of a LUN.
func (w *world) content(dir, id string) ([]byte, error) {
	if !w.members {
		return os.ReadFile(filepath.Join(dir, "volumes", "default", "luns", id+".img"))
	}
	home := filepath.Join(dir, "state", "volumes", "default", "luns")
	raw, err := os.ReadFile(filepath.Join(dir, "state", "store.json"))
	if err != nil {
		return nil, err
	}
	var rec struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(raw, &rec); err != nil {
		return nil, err
	}
	m, err := extents.Read(filepath.Join(home, id+".map"), extents.Owner{LUN: uuid.MustParse(id), Store: uuid.MustParse(rec.ID)})
	if err != nil {
		return nil, err
	}
	var from [256][]byte
	for n, folder := range append([]string{home}, filepath.Join(dir, memberNames[0], "luns"), filepath.Join(dir, memberNames[1], "luns")) {
		if from[n+1], err = os.ReadFile(filepath.Join(folder, id+".img")); err != nil {
			return nil, err
		}
	}
	var all []byte
	for e := range m.Extents() {
		x := from[m.At(e)]
		if x == nil {
			return nil, errors.New("the map names a place that is not there")
		}
		all = append(all, x[e*extents.Size:min((e+1)*extents.Size, int64(len(x)))]...)
	}
	return all, nil
}
