package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// What is damaged of a node that does not run: blocks, checksums, and images as a whole.

// damageBeforeStop damages a node that is then killed.
func (r *rig) damageBeforeStop(ctx context.Context, f Fault) error {
	rng := rotRand(f)
	r.tally(ctx)
	r.beginDamage(f.Node)
	older := map[string][]byte{}
	for _, path := range []string{r.seldomImage(f.Node), r.lunImage(f.Node, rng.IntN(len(r.luns)))} {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		older[path] = b
	}
	if r.rot.older[f.Node] == nil { // else there are ones from an earlier episode, which later writes have become cold since
		r.rot.older[f.Node] = older
	}
	for range 3 {
		r.writeSeldom()
	}
	var err error
	if rng.IntN(2) == 0 {
		err = r.damageSome(rng, f.Node, true)
	}
	err = errors.Join(err, r.pair.Kill(f.Node))
	older, r.rot.older[f.Node] = r.rot.older[f.Node], older
	for path, b := range older {
		r.rot.held[spot{path, -1}] = b // what damageStopped may put back
	}
	return err
}

// damageStopped damages what a node that does not run has, and starts it.
func (r *rig) damageStopped(f Fault) error {
	if r.pair.PID(f.Node) != 0 {
		return fmt.Errorf("node %s is to be damaged as one that does not run, and runs", harness.Names[f.Node])
	}
	rng := rand.New(rand.NewPCG(uint64(f.N), 0x73746f70))
	err := r.certain(rng, f.Node)
	for n := 1 + rng.IntN(3); n > 0 && err == nil; n-- {
		switch rng.IntN(6) {
		case 0:
			err = r.damageSums(rng, f.Node, false)
		case 1:
			err = r.damageSums(rng, f.Node, true)
		case 2:
			err = r.putBackOlder(rng)
		case 3:
			if rng.IntN(3) == 0 {
				err = r.truncate(rng, f.Node)
			}
		default:
			err = r.damageSome(rng, f.Node, true)
		}
	}
	if err != nil {
		return err
	}
	return r.restart(f.Node)
}

// untouched is an image of which nothing was damaged in this episode: where its checksums go,
// nothing else vouches for it.
func (r *rig) untouched(rng *rand.Rand, node int) string {
	list := r.victims(node, true)
	for p := range r.rot.hit {
		list = slices.DeleteFunc(list, func(path string) bool { return path == p.path })
	}
	if len(list) == 0 {
		return ""
	}
	path := list[rng.IntN(len(list))]
	r.rot.spared[path] = true
	return path
}

// damageSums damages some sectors of a file of checksums, or deletes it.
func (r *rig) damageSums(rng *rand.Rand, node int, whole bool) error {
	image := r.untouched(rng, node)
	if image == "" || r.rot.unchecked {
		return nil
	}
	rel, err := filepath.Rel(filepath.Join(r.pair.State[node], "volumes"), image)
	if err != nil {
		return err
	}
	path := filepath.Join(r.pair.State[node], "sums", rel[:len(rel)-len(".img")]+".sums")
	if whole {
		r.rot.ways[waySums]++
		return os.Remove(path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	sectors := (st.Size() - sumsHead) / sumsSector
	noise := make([]byte, sumsSector)
	for range 1 + rng.IntN(8) {
		for i := range noise {
			noise[i] = byte(rng.Uint32())
		}
		_, e := f.WriteAt(noise, sumsHead+rng.Int64N(max(sectors, 1))*sumsSector)
		err = errors.Join(err, e)
	}
	r.rot.ways[waySector]++
	return errors.Join(err, f.Close())
}

// putBackOlder puts an image back to what it was earlier.
func (r *rig) putBackOlder(rng *rand.Rand) error {
	var older []spot
	for p := range maps.Keys(r.rot.held) {
		if p.at < 0 && !r.rot.spared[p.path] {
			older = append(older, p)
		}
	}
	if len(older) == 0 {
		return nil
	}
	slices.SortFunc(older, func(a, b spot) int { return bytes.Compare([]byte(a.path), []byte(b.path)) })
	p := older[rng.IntN(len(older))]
	now, err := os.ReadFile(p.path)
	if err != nil {
		return err
	}
	old := r.rot.held[p]
	for at := 0; at+sumBlock <= min(len(old), len(now)); at += sumBlock {
		if !bytes.Equal(old[at:at+sumBlock], now[at:at+sumBlock]) && r.wound(spot{p.path, int64(at)}) {
			r.rot.blocks++
		}
	}
	r.rot.ways[wayImage]++
	// As a person has it: another file under the name, which is shorter than the LUN if that was
	// made larger meanwhile.
	if err := os.WriteFile(p.path+".restored", old, 0o600); err != nil {
		return err
	}
	return os.Rename(p.path+".restored", p.path)
}

// truncate makes an image shorter than the LUN: everything is copied.
func (r *rig) truncate(rng *rand.Rand, node int) error {
	path := r.untouched(rng, node)
	if path == "" {
		return nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	r.rot.ways[wayTruncate]++
	return os.Truncate(path, rng.Int64N(st.Size()))
}
