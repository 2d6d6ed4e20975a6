package node

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
)

// hung is a filesystem whose statfs waits until the test ends, as without a path to its device.
type hung struct {
	fuse.RawFileSystem
	asked, end chan struct{}
}

func (h *hung) StatFs(<-chan struct{}, *fuse.InHeader, *fuse.StatfsOut) fuse.Status {
	h.asked <- struct{}{}
	<-h.end
	return fuse.EIO
}

// mountHung mounts it and returns its path.
func mountHung(t *testing.T) (string, *hung) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and FUSE: %v", err)
	}
	dir := t.TempDir()
	h := &hung{fuse.NewDefaultRawFileSystem(), make(chan struct{}, 16), make(chan struct{})}
	s, err := fuse.NewServer(h, dir, &fuse.MountOptions{DirectMountStrict: true, FsName: "hung"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { s.Serve(); close(done) }()
	t.Cleanup(func() {
		close(h.end)
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		<-done
	})
	return dir, h
}

// Hazard 25: statistics of a volume that hangs return in bounded time, and a second call blocks no
// other thread.
func TestHazard25Statistics(t *testing.T) {
	path, h := mountHung(t)
	n := &unlocked{stuck: map[string]struct{}{}}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	answered := make(chan error, 1)
	ask := func(ctx context.Context) {
		_, err := n.statfs(ctx, path)
		answered <- err
	}
	go ask(ctx)
	select {
	case err := <-answered:
		if status.Code(err) != codes.DeadlineExceeded {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("statistics hang with the filesystem")
	}
	go ask(t.Context())
	select {
	case err := <-answered:
		if status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the second call hangs with the first one")
	}
	if len(h.asked) != 1 {
		t.Errorf("statfs was called %d times", len(h.asked))
	}
}

// device is an attacher whose status the test sets.
type device struct {
	attach.Attacher
	status   attach.Status
	err      error
	attached int
}

func (d *device) Status(context.Context, string) (attach.Status, error) { return d.status, d.err }

func (d *device) Attach(context.Context, attach.Attachment) (string, error) {
	d.attached++
	return d.status.Device, nil
}

func server(t *testing.T, a attach.Attacher) *Server {
	t.Helper()
	s, err := New(Config{IQN: "iqn.2026-11.storage.gemel:node.x", StateDir: t.TempDir(), Attacher: a})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stageRequest(t *testing.T, block bool) (*csi.NodeStageVolumeRequest, attach.Attachment) {
	t.Helper()
	a := attach.Attachment{VolumeID: "v", Generation: 3, HostIQN: "iqn.2026-11.storage.gemel:node.x", TargetIQN: "iqn.2026-11.storage.gemel:c.p",
		Portals: []string{"10.0.0.1:3260"}, LUN: 1, WWID: "602474d0000000000000000000000001"}
	q := &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: filepath.Join(t.TempDir(), "staging"), PublishContext: a.PublishContext(),
		VolumeCapability: &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}}
	if block {
		q.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		q.VolumeCapability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}
	}
	return q, a
}

// Hazard 16: a staged volume is verified before success is returned; one whose device is gone is
// attached again.
func TestHazard16Staged(t *testing.T) {
	q, a := stageRequest(t, true)
	d := &device{status: attach.Status{Attachment: a, Device: "/dev/dm-0"}}
	s := server(t, d)
	for i, c := range []struct {
		err      error
		attached int
	}{{nil, 1}, {nil, 1}, {attach.ErrFailed, 2}, {attach.ErrNotAttached, 3}, {nil, 3}} {
		d.err = c.err
		if _, err := s.NodeStageVolume(t.Context(), q); err != nil || d.attached != c.attached {
			t.Fatalf("call %d: %v, attached %d times", i, err, d.attached)
		}
	}
}

// Hazards 2 and 16: a mount of another device at the staging path is neither accepted nor covered,
// and its device is not formatted.
func TestHazard16NoStackedMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	q, a := stageRequest(t, false)
	if err := os.MkdirAll(q.StagingTargetPath, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", q.StagingTargetPath, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for unix.Unmount(q.StagingTargetPath, 0) == nil {
		}
	})
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := server(t, &device{status: attach.Status{Attachment: a, Device: image, Rdev: unix.Mkdev(253, 77)}})
	for range 2 {
		if _, err := s.NodeStageVolume(t.Context(), q); status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
	}
	if raw, err := os.ReadFile(image); err != nil || !bytes.Equal(raw, make([]byte, 1<<20)) {
		t.Fatal("the device was written to", err)
	}
}

// Hazard 14: the record is written before anything that would have to be undone.
func TestHazard14RecordFirst(t *testing.T) {
	q, _ := stageRequest(t, true)
	a := &refusing{}
	s := server(t, a)
	a.recorded = func() bool { r, err := s.unlocked.load("v"); return err == nil && r != nil }
	if _, err := s.NodeStageVolume(t.Context(), q); err == nil || !a.was {
		t.Fatal(err, a.was)
	}
}

// refusing is an attacher that checks for a record.
type refusing struct {
	attach.Attacher
	recorded func() bool
	was      bool
}

func (r *refusing) Attach(context.Context, attach.Attachment) (string, error) {
	r.was = r.recorded()
	return "", attach.ErrFailed
}
