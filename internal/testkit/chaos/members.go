package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// With members, each node's volume has two more places, on the same disk, and one of the three is
// drained all the time: what is judged is that extents which move lose nothing, whatever happens
// to the nodes meanwhile.

var memberPlaces = []string{"home", "x", "y"}

func memberDir(disk, member string) string { return filepath.Join(disk, "member-"+member) }

func memberFlags(disk string) []string {
	list := []string{"--shared-filesystem"}
	for _, m := range memberPlaces[1:] {
		list = append(list, "--backing-volume", "default/"+m+"="+memberDir(disk, m))
	}
	return list
}

// memberKinds leaves out what looks for a LUN's blocks in one file.
func memberKinds(kinds []Kind) []Kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool {
		return slices.Contains(damage, k) || slices.Contains([]Kind{ReadErrors, WriteErrors, FlushErrors, FullPool, DamagedFiles}, k)
	})
}

// moveMembers has nodes drain one place after the other, until ctx ends. A node that does not
// answer, or has no room, is asked again later.
func (r *rig) moveMembers(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x6d656d62657273))
	for ctx.Err() == nil {
		i, at := rng.IntN(len(harness.Names)), memberPlaces[rng.IntN(len(memberPlaces))]
		if err := r.drainOnly(ctx, i, at); err == nil {
			r.rec.memberDrains.Add(1)
		} else if code := status.Code(err); ctx.Err() == nil && !slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.FailedPrecondition, codes.ResourceExhausted, codes.Canceled}, code) {
			r.rec.failed("drain of member %s of node %s: %w", at, harness.Names[i], err)
		}
		if wait(ctx, time.Duration(100+rng.IntN(1500))*time.Millisecond) != nil {
			return
		}
	}
}

// drainOnly has a node drain one place, and no other.
func (r *rig) drainOnly(ctx context.Context, i int, at string) error {
	drain := func(m string, end bool) error {
		c, cancel := context.WithTimeout(ctx, opTimeout)
		defer cancel()
		_, err := r.pair.Client(i).DrainMember(c, &targetv1.DrainMemberRequest{Volume: "default", Member: m, End: end})
		return err
	}
	for _, m := range memberPlaces {
		if m != at {
			if err := drain(m, true); err != nil {
				return err
			}
		}
	}
	return drain(at, false)
}

// flatten writes what the LUNs and snapshots of a stopped node hold into one file each, below a
// folder that is like a state directory, for the comparison.
func (r *rig) flatten(i int) (dir string, err error) {
	n := harness.Names[i]
	dir = r.lab.Path("flat-" + n)
	opts := store.Options{Log: slog.New(slog.DiscardHandler), SharedFilesystem: true}
	for _, m := range memberPlaces[1:] {
		opts.Members = append(opts.Members, store.MemberDir{Of: store.DefaultBackingVolume, Name: m, Dir: memberDir(r.disks[i], m)})
	}
	s, err := store.Open(r.pair.State[i], store.Identity{Cluster: harness.Cluster, Pair: harness.PairName, Node: n}, opts)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	v := s.Default()
	for _, k := range []struct {
		folder string
		list   func() ([]store.Info, error)
		open   func(string) (*store.File, error)
	}{{compare.Folders[0], v.ListLUNs, v.OpenLUN}, {compare.Folders[1], v.ListSnapshots, v.OpenSnapshot}} {
		if err := os.MkdirAll(filepath.Join(dir, k.folder), 0o700); err != nil {
			return "", err
		}
		list, err := k.list()
		if err != nil {
			return "", err
		}
		for _, x := range list {
			f, err := k.open(x.UUID)
			if err == nil {
				err = errors.Join(copyOut(f, filepath.Join(dir, k.folder, x.UUID+".img")), f.Close())
			}
			if err != nil {
				return "", fmt.Errorf("%s of node %s: %w", x.UUID, n, err)
			}
		}
	}
	return dir, nil
}

// copyOut writes the data of a LUN to a file, and no holes.
func copyOut(f *store.File, name string) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	err = out.Truncate(size)
	buf := make([]byte, 1<<20)
	for off := int64(0); err == nil && off < size; {
		var run int64
		var data bool
		if run, data, err = f.Extents(off, size-off); err != nil || run <= 0 {
			break
		}
		if !data {
			off += run
			continue
		}
		p := buf[:min(run, int64(len(buf)))]
		if err = f.ReadAt(p, off); err == nil {
			_, err = out.WriteAt(p, off)
			off += int64(len(p))
		}
	}
	return errors.Join(err, out.Close())
}
