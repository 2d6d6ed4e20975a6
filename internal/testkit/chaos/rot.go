package chaos

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Damage (R15): blocks of one node's images change behind its back, as bad disks, controllers and
// people have it, while hosts read and write them. Only one node's copy is damaged at a time, and
// each block once in an episode; the other node's copy is touched when a scrub has found nothing
// more.

const (
	sumBlock   = 4096    // what one checksum is of
	rotRun     = 1 << 20 // the longest run that is overwritten
	rotAtOnce  = 6       // damages before a node is killed
	sumsSector = 512     // of a file of checksums
	sumsHead   = 4096    // the page before its sectors
)

// Ways of damage.
const (
	wayFlip     = "bits flipped"
	waySwap     = "blocks swapped"
	wayStray    = "block of another image"
	wayOlder    = "older content"
	wayHole     = "hole"
	wayRun      = "run overwritten"
	waySector   = "sector of checksums"
	waySums     = "checksums deleted"
	wayImage    = "older image"
	wayTruncate = "image truncated"
)

var rotWays = []string{wayFlip, wayFlip, waySwap, wayStray, wayOlder, wayOlder, wayHole, wayRun}

// spot is a block of an image.
type spot struct {
	path string
	at   int64
}

// rot is what was damaged, and what came of it. One goroutine at a time uses it.
type rot struct {
	unchecked bool // the nodes keep no checksums
	ways      map[string]int
	blocks    int64 // that had another content afterwards, of images that were neither truncated nor lost their checksums
	restored  int64

	hit    map[spot]bool   // in this episode
	spared map[string]bool // images that may not be damaged in this episode: nothing would vouch for them
	held   map[spot][]byte // what blocks held when the episode began
	older  [2]map[string][]byte

	seldomMay map[int64][]uint64 // by piece: what it may hold; none: seldomValue

	healed, repaired int64
	counted          [2]counted
}

func newRot(unchecked bool) *rot {
	return &rot{unchecked: unchecked, ways: map[string]int{}, seldomMay: map[int64][]uint64{}}
}

// wroteSeldom notes a write of a piece.
func (x *rot) wroteSeldom(off int64, v uint64, done bool) {
	may := x.seldomMay[off]
	if done {
		may = nil
	} else if may == nil {
		may = []uint64{seldomValue}
	}
	x.seldomMay[off] = append(may, v)
}

func imagePath(state, folder, id string) string {
	return filepath.Join(state, "volumes", "default", folder, id+".img")
}

func (r *rig) lunImage(i, lun int) string { return imagePath(r.pair.State[i], "luns", r.luns[lun]) }
func (r *rig) seldomImage(i int) string   { return imagePath(r.pair.State[i], "luns", r.seldomID) }

// somewhereIn draws a block of an image: one that hosts use, or any of the LUN that is seldom
// written.
func (r *rig) somewhereIn(rng *rand.Rand, path string) int64 {
	if filepath.Base(path) == r.seldomID+".img" {
		return rng.Int64N(seldomLUN/sumBlock) * sumBlock
	}
	k := r.keys[rng.IntN(len(r.keys))]
	return k.block * int64(r.hosts[0].disks[0].BlockSize()) / sumBlock * sumBlock
}

// victims are the images of a node that may be damaged.
func (r *rig) victims(i int, snapshots bool) (list []string) {
	for lun := range r.luns {
		list = append(list, r.lunImage(i, lun), r.lunImage(i, lun)) // what hosts use twice as often
	}
	list = append(list, r.seldomImage(i))
	if snapshots {
		for _, id := range r.kept() {
			list = append(list, imagePath(r.pair.State[i], "snapshots", id))
		}
	}
	return slices.DeleteFunc(list, func(p string) bool { _, err := os.Stat(p); return err != nil || r.rot.spared[p] })
}

// beginDamage forgets the last episode's, and remembers what blocks hold.
func (r *rig) beginDamage(node int) {
	x := r.rot
	x.hit, x.spared, x.held = map[spot]bool{}, map[string]bool{}, map[spot][]byte{}
	r.rec.wounds.forget()
	for _, path := range r.victims(node, true) {
		rng := rand.New(rand.NewPCG(uint64(len(path)), 7))
		for range 2 * cold {
			p := spot{path, r.somewhereIn(rng, path)}
			if b, err := readBlock(p); err == nil {
				x.held[p] = b
			}
		}
	}
}

func readBlock(p spot) ([]byte, error) {
	f, err := os.Open(p.path)
	if err != nil {
		return nil, err
	}
	b := make([]byte, sumBlock)
	_, err = f.ReadAt(b, p.at)
	return b, errors.Join(err, f.Close())
}

// wound notes a block before it is damaged; false if it was already, in this episode.
func (r *rig) wound(p spot) bool {
	if r.rot.hit[p] {
		return false
	}
	r.rot.hit[p] = true
	for lun, id := range r.luns {
		if filepath.Base(p.path) == id+".img" {
			r.rec.wounds.add(key{lun, p.at / sumBlock})
		}
	}
	return true
}

// overwrite changes blocks through a descriptor of its own, those that were not damaged yet. nil: a
// hole.
func (r *rig) overwrite(p spot, data []byte, hole bool) error {
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	old := make([]byte, sumBlock)
	for at := 0; at < len(data) && err == nil; at += sumBlock {
		b, q := data[at:at+sumBlock], spot{p.path, p.at + int64(at)}
		if _, err = f.ReadAt(old, q.at); err != nil {
			break
		}
		if bytes.Equal(b, old) || !r.wound(q) {
			continue
		}
		if hole {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.at, sumBlock)
		} else {
			_, err = f.WriteAt(b, q.at)
		}
		r.rot.blocks++
	}
	return errors.Join(err, f.Close())
}

// damageOnce damages a block, or some, of an image of a node.
func (r *rig) damageOnce(rng *rand.Rand, node int, path string) error {
	way := rotWays[rng.IntN(len(rotWays))]
	p := spot{path, r.somewhereIn(rng, path)}
	err := r.damageBy(rng, node, way, p)
	if err == nil {
		r.rot.ways[way]++
	}
	if errors.Is(err, os.ErrNotExist) { // a snapshot that was deleted meanwhile
		return nil
	}
	return err
}

func (r *rig) damageBy(rng *rand.Rand, node int, way string, p spot) error {
	b, err := readBlock(p)
	if err != nil {
		return err
	}
	switch way {
	case wayFlip:
		for range 1 + rng.IntN(3) {
			b[rng.IntN(sumBlock)] ^= 1 << rng.IntN(8)
		}
		return r.overwrite(p, b, false)
	case waySwap:
		q := spot{p.path, r.somewhereIn(rng, p.path)}
		c, err := readBlock(q)
		if err != nil || r.rot.hit[p] || r.rot.hit[q] {
			return err
		}
		return errors.Join(r.overwrite(p, c, false), r.overwrite(q, b, false))
	case wayStray:
		other := r.lunImage(node, rng.IntN(len(r.luns)))
		if other == p.path {
			other = r.seldomImage(node)
		}
		c, err := readBlock(spot{other, r.somewhereIn(rng, other)})
		if err != nil {
			return err
		}
		return r.overwrite(p, c, false)
	case wayOlder:
		if old := r.rot.held[p]; old != nil {
			return r.overwrite(p, old, false)
		}
		return nil
	case wayHole:
		return r.overwrite(p, make([]byte, sumBlock), true)
	}
	run := make([]byte, min(sumBlock*(1+rng.Int64N(rotRun/sumBlock)), lunSize-p.at))
	if rng.IntN(2) == 0 {
		for i := range run {
			run[i] = byte(rng.Uint32())
		}
	}
	return r.overwrite(p, run, false)
}

func rotRand(f Fault) *rand.Rand { return rand.New(rand.NewPCG(uint64(f.N), 0x726f74)) }

// certain damages a block of the LUN that is seldom written, which no host makes good by writing
// it.
func (r *rig) certain(rng *rand.Rand, node int) error {
	return r.damageBy(rng, node, wayFlip, spot{r.seldomImage(node), rng.Int64N(seldomLUN/sumBlock) * sumBlock})
}

// damageRunning damages blocks of a node that continues to run.
func (r *rig) damageRunning(f Fault) {
	rng, end := rotRand(f), time.Now().Add(f.For)
	r.beginDamage(f.Node)
	err := r.certain(rng, f.Node)
	for err == nil && time.Now().Before(end) {
		list := r.victims(f.Node, true)
		err = r.damageOnce(rng, f.Node, list[rng.IntN(len(list))])
		_ = wait(context.Background(), time.Duration(rng.Int64N(int64(150*time.Millisecond))))
	}
	if err != nil {
		r.rec.failed("%v: %w", f, err)
	}
}

func (r *rig) damageSome(rng *rand.Rand, node int, snapshots bool) error {
	err := r.certain(rng, node)
	for n := 2 + rng.IntN(rotAtOnce); n > 0 && err == nil; n-- {
		list := r.victims(node, snapshots)
		err = r.damageOnce(rng, node, list[rng.IntN(len(list))])
	}
	return err
}

// damageAlone damages a node, and kills its peer or cuts it off. Until that is back and what is
// lost was restored, hosts may get read errors for it.
func (r *rig) damageAlone(ctx context.Context, f Fault) error {
	peer := 1 - f.Node
	r.tally(ctx)
	r.beginDamage(f.Node)
	if err := r.damageSome(rotRand(f), f.Node, false); err != nil {
		return err
	}
	r.rec.wounds.open(r.rec.now())
	if f.N%3 == 0 {
		return errors.Join(r.net.filter(nodeA, ifLink, ruleDrop), r.net.filter(nodeB, ifLink, ruleDrop), r.hostWire(peer, ruleDrop))
	}
	return r.pair.Kill(peer)
}

func (r *rig) endAlone(f Fault) error {
	peer := 1 - f.Node
	if f.N%3 == 0 {
		return errors.Join(r.net.filter(nodeA, ifLink, ""), r.net.filter(nodeB, ifLink, ""), r.hostWire(peer, ""))
	}
	return r.restart(peer)
}
