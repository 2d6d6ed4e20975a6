package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/userspace"
	"github.com/gemel-storage/gemel/internal/pairclient"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

const (
	host    = "iqn.2026-11.storage.gemel.test:database"
	lunSize = 1 << 30
)

// patience is for what is unmounted: a process that has made a mount namespace meanwhile, as other
// suites on this machine do, has the mounts for as long as it lives.
const patience = 5 * time.Minute

// place is where a database keeps a part of itself: a LUN with a filesystem at a path. Restored
// LUNs come to the same path, because databases note absolute paths.
type place struct {
	pair  int
	owner string
	fs    string
	path  string
	lun   string // what is mounted at present
}

// rig is two pairs with a LUN each, which are attached and mounted on this machine.
type rig struct {
	t        *testing.T
	ctx      context.Context
	lab      *lab.Lab
	pairs    []*harness.Pair
	clients  []*pairclient.Client
	attacher *userspace.Attacher
	places   [2]*place // of the data, and of the log
}

// newRig fails by saying what is missing. Everything is below the folder of a lab, which a later
// run cleans up if this one is killed.
func newRig(t *testing.T, limit time.Duration) *rig {
	t.Helper()
	if err := loopdev.CanMountXFS(); err != nil {
		t.Fatalf("cannot attach LUNs here: %v", err)
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Fatal("mkfs.ext4 is not installed (Debian: e2fsprogs); `make deps` installs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx}
	var swept []string
	var err error
	r.lab, swept, err = lab.New("")
	r.must(err)
	for _, s := range swept {
		t.Logf("removed what an earlier run had left: %s", s)
	}
	t.Cleanup(r.close)
	r.must(os.Chmod(r.lab.Dir, 0o711)) // databases run as another user
	target, err := r.lab.Build(ctx, harness.Root(), "./cmd/gemel-target")
	r.must(err)
	driver, err := r.lab.Build(ctx, harness.Root(), "./cmd/gemel-csi")
	r.must(err)
	r.must(loopdev.MountXFS(ctx, r.lab.Path("image"), r.lab.Path("pairs"), 24<<30, false))
	for i := range r.places {
		r.addPair(i, target)
	}
	r.attacher, err = userspace.New(userspace.Config{Dir: r.lab.Path("attach"), Command: []string{driver, "attach-holder"}})
	r.must(err)
	r.places = [2]*place{{pair: 0, owner: "a", fs: "ext4", path: r.lab.Path("data")}, {pair: 1, owner: "b", fs: "xfs", path: r.lab.Path("log")}}
	t.Cleanup(r.purge)
	for _, p := range r.places {
		r.must(os.Mkdir(p.path, 0o755))
		id := uuid.NewString()
		r.create(p, &targetv1.CreateLUNRequest{Uuid: id, PreferredNode: p.owner})
		r.mount(p, id, true)
	}
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) addPair(i int, target string) {
	r.t.Helper()
	p, err := harness.New(harness.Options{Dir: r.lab.Path("pairs", fmt.Sprintf("p%d", i)), Binary: target, Name: fmt.Sprintf("p%d", i), Supervised: true})
	r.must(err)
	r.pairs = append(r.pairs, p)
	r.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			r.t.Errorf("stop: %v", err)
		}
		if r.t.Failed() {
			for n, name := range harness.Names {
				b, _ := os.ReadFile(p.LogFile(n))
				r.t.Logf("node %s of pair %s:\n%s", name, p.Name, b[max(0, len(b)-4<<10):])
			}
		}
	})
	r.must(p.Start(r.ctx))
	c, err := pairclient.New(pairclient.Config{Endpoints: p.Control[:], Patience: 3 * time.Second})
	r.must(err)
	r.t.Cleanup(func() { _ = c.Close() })
	r.clients = append(r.clients, c)
}

func (r *rig) create(p *place, q *targetv1.CreateLUNRequest) {
	r.t.Helper()
	q.Name, q.SizeBytes = "lun-"+q.Uuid, lunSize
	_, err := r.clients[p.pair].CreateLUN(r.ctx, q)
	r.must(err)
}

// mount attaches a LUN and mounts it at a place.
func (r *rig) mount(p *place, id string, empty bool) {
	r.t.Helper()
	m, err := r.clients[p.pair].MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	r.must(err)
	a := attach.Attachment{VolumeID: id, Generation: m.Generation, HostIQN: m.HostIqn, TargetIQN: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, portal := range m.Portals {
		a.Portals = append(a.Portals, portal.Address)
	}
	device, err := r.attacher.Attach(r.ctx, a)
	r.must(err)
	if empty {
		if b, err := exec.CommandContext(r.ctx, "mkfs."+p.fs, "-q", device).CombinedOutput(); err != nil {
			r.t.Fatalf("mkfs.%s: %v: %s", p.fs, err, b)
		}
	}
	if err := unix.Mount(device, p.path, p.fs, 0, ""); err != nil {
		r.t.Fatalf("mount %s of %s at %s: %v", p.fs, id, p.path, err)
	}
	p.lun = id
}

// unmount takes the LUN of a place away from this machine.
func (r *rig) unmount(p *place) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	r.must(harness.Wait(ctx, p.path+" is unmounted", func() (bool, string) {
		err := unix.Unmount(p.path, 0)
		return err == nil, fmt.Sprint(err)
	}))
	r.must(harness.Wait(ctx, p.lun+" is detached", func() (bool, string) {
		err := r.attacher.Detach(ctx, p.lun)
		if err != nil && !errors.Is(err, attach.ErrBusy) && ctx.Err() == nil {
			r.t.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	}))
	_, err := r.clients[p.pair].UnmapHost(r.ctx, &targetv1.UnmapHostRequest{LunUuid: p.lun, HostIqn: host})
	r.must(err)
}

// remove deletes the LUN of a place.
func (r *rig) remove(p *place) {
	r.t.Helper()
	r.unmount(p)
	_, err := r.clients[p.pair].DeleteLUN(r.ctx, &targetv1.DeleteLUNRequest{Uuid: p.lun})
	r.must(err)
}

// restore makes LUNs of snapshots, and mounts them where the originals were. Every second one is
// owned by the other node, so that both copies of each snapshot are read.
func (r *rig) restore(snaps [2]string, other bool) {
	r.t.Helper()
	for i, p := range r.places {
		id, owner := uuid.NewString(), p.owner
		if other {
			owner = map[string]string{"a": "b", "b": "a"}[owner]
		}
		r.create(p, &targetv1.CreateLUNRequest{Uuid: id, SourceSnapshotUuid: snaps[i], PreferredNode: owner})
		r.mount(p, id, false)
	}
}

// purge takes away what a test that has failed has left, while the pairs still serve.
func (r *rig) purge() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, p := range r.places {
		if err := unix.Unmount(p.path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			r.t.Errorf("unmount %s: %v", p.path, err)
		}
	}
	ids, err := r.attacher.Attached()
	if err != nil {
		r.t.Error(err)
	}
	for _, id := range ids {
		if err := r.attacher.Purge(ctx, id); err != nil {
			r.t.Error(err)
		}
	}
}

// close removes everything. The lab would not wait long enough for the filesystem of the pairs.
func (r *rig) close() {
	pairs := r.lab.Path("pairs")
	if err := unix.Unmount(pairs, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		r.t.Errorf("unmount %s: %v", pairs, err)
	}
	if err := until(context.Background(), patience, "the loop devices are released", func() bool {
		on, err := loopdev.On(r.lab.Dir)
		return err == nil && len(on) == 0
	}); err != nil {
		r.t.Error(err)
	}
	if err := r.lab.Close(); err != nil {
		r.t.Error(err)
	}
}
