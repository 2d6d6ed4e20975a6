package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

// pass is one reading of all blocks of all streams.
func (r *rig) pass(ctx context.Context, path string, open func(i int) (io.ReaderAt, func() error, error)) error {
	var read atomic.Int64
	var all, lost int
	for _, s := range r.streams {
		all += s.Ledger.Len()
	}
	stop := r.tell.Live(func() string { return path + " " + story.Bar(read.Load(), int64(all)) })
	defer stop()
	for i, s := range r.streams {
		dev, closeDev, err := open(i)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", path, s.Name, err)
		}
		found, err := s.Verify(ctx, dev, func(n int) { read.Add(int64(n)) })
		if err = errors.Join(err, closeDev()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.report.lose(found)
		lost += len(found)
	}
	r.report.ReadThrough = append(r.report.ReadThrough, readThrough{Path: path, Blocks: int(read.Load()), Lost: lost})
	r.tell.Fact("%s: %d blocks read, %d lost", path, read.Load(), lost)
	return nil
}

// layouts of the streams' files; nil for a device.
type layouts []load.Layout

// readBackApplication stops the writers and reads through what they wrote to.
func (r *rig) readBackApplication(ctx context.Context) error {
	for _, s := range r.streams {
		if err := s.Stop(ctx); err != nil {
			return err
		}
		if err := s.Target.Sync(); err != nil {
			return err
		}
	}
	none := func() error { return nil }
	err := r.pass(ctx, "as the application sees it", func(i int) (io.ReaderAt, func() error, error) {
		return r.streams[i].Target, none, nil
	})
	if err != nil {
		return err
	}
	r.places = make(layouts, len(r.streams))
	for i, s := range r.streams {
		f, ok := s.Target.(*load.File)
		if ok && r.vols[i].kind == mounted {
			if r.places[i], err = load.LayoutOf(f.File); err != nil {
				return err
			}
			r.tell.Fact("%s: the filesystem says where its file's blocks are: %d extents", s.Name, len(r.places[i]))
		}
		if err := s.Target.Close(); err != nil {
			return err
		}
	}
	return nil
}

// readBackNodes reads every block over fresh sessions to one node at a time.
func (r *rig) readBackNodes(ctx context.Context) error {
	for _, n := range harness.Names {
		host := "iqn.2026-11.storage.gemel.demo:verify-" + n
		path := "through node " + n
		for _, v := range r.vols[:1] {
			l, err := call(ctx, r.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.LUN, error) {
				return c.GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: v.lun})
			})
			if err != nil {
				return err
			}
			if l.Owner == n {
				path += ", the owner"
			} else {
				path += ", which forwards to the owner"
			}
		}
		err := r.pass(ctx, path, func(i int) (io.ReaderAt, func() error, error) {
			v := r.vols[i]
			m, err := mapHost(ctx, r.pair, v.lun, host)
			if err != nil {
				return nil, nil, err
			}
			unmap := func() error { return unmapHost(ctx, r.pair, v.lun, host) }
			d, err := openDevice(ctx, m, r.opt.wait, n)
			if err != nil {
				return nil, nil, errors.Join(err, unmap())
			}
			dev := load.Device{D: d}
			var at io.ReaderAt = dev
			if r.places[i] != nil {
				at = r.places[i].On(dev)
			}
			return at, func() error { return errors.Join(dev.Close(), unmap()) }, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compareStores stops the pair and compares what is on disk.
func (r *rig) compareStores(ctx context.Context) error {
	for i := range harness.Names {
		if err := r.pair.Term(i); err != nil {
			return err
		}
	}
	if r.opt.corrupt {
		what, err := compare.Corrupt(r.pair.State[second])
		if err != nil {
			return err
		}
		r.tell.Problem("as asked for by --corrupt-for-test: flipped %s of node %s", what, harness.Names[second])
	}
	var done atomic.Int64
	stop := r.tell.Live(func() string { return story.Bytes(done.Load()) + " compared" })
	defer stop()
	begun := time.Now()
	list, err := compare.Stores(ctx, r.pair.State[first], r.pair.State[second], func(n int64) { done.Add(n) })
	if err != nil {
		return err
	}
	r.report.Images, r.report.Identical = list, compare.Identical(list) && len(list) == len(r.vols)+len(r.snapshots)
	for _, im := range list {
		verdict := "identical"
		if !im.Identical {
			verdict = "DIFFERENT: " + im.Reason
		}
		r.tell.Fact("%s: %s, of which %s is data: %s", im.Name, story.Bytes(im.Size), story.Bytes(im.Compared), verdict)
	}
	if want := len(r.vols) + len(r.snapshots); len(list) != want {
		return fmt.Errorf("%d images are on disk, %d are expected", len(list), want)
	}
	if !r.report.Identical {
		return errors.New("the copies differ")
	}
	r.tell.Fact("%s compared in %.1f s", story.Bytes(done.Load()), time.Since(begun).Seconds())
	return nil
}

// deleteAll deletes every volume and snapshot, and looks whether that is true on disk.
func (r *rig) deleteAll(ctx context.Context) error {
	if err := within(ctx, settle, r.pair.Start); err != nil {
		return err
	}
	for len(r.vols) > 0 {
		v := r.vols[len(r.vols)-1]
		if err := r.store.destroy(ctx, v); err != nil {
			return err
		}
		r.vols = r.vols[:len(r.vols)-1]
	}
	for _, id := range r.snapshots {
		if err := r.store.destroySnapshot(ctx, id); err != nil {
			return err
		}
	}
	r.snapshots = nil
	err := within(ctx, settle, func(ctx context.Context) error {
		return harness.Wait(ctx, "the stores are empty", func() (bool, string) {
			for i, n := range harness.Names {
				left, err := compare.Images(r.pair.State[i])
				if err != nil || len(left) > 0 {
					return false, fmt.Sprintf("node %s: %v %v", n, left, err)
				}
			}
			return true, ""
		})
	})
	if err == nil {
		r.tell.Fact("no image is left on either node")
	}
	return err
}
