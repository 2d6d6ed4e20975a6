package sanity

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// A raw volume is a block device with working zeroing, discard and growth.
func TestRawVolume(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("raw", 64*mib, raw(writer), nil).up()
	v.publish()
	f := v.open()
	if n := blockSize64(t, f); n != 64*mib {
		t.Fatalf("%d bytes", n)
	}
	if _, err := f.WriteAt(aligned(16*mib, 0xaa), 0); err != nil {
		t.Fatal(err)
	}
	expect(t, f, 0, 16*mib, 0xaa)
	before := e.allocated(v)
	for i, c := range []struct {
		name string
		do   func(off, n uint64) error
	}{
		{"BLKZEROOUT", func(off, n uint64) error { return blockRange(f, unix.BLKZEROOUT, off, n) }},
		{"BLKDISCARD", func(off, n uint64) error { return blockRange(f, unix.BLKDISCARD, off, n) }},
		{"FALLOC_FL_ZERO_RANGE", func(off, n uint64) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE, int64(off), int64(n))
		}},
		{"FALLOC_FL_PUNCH_HOLE", func(off, n uint64) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
		}},
	} {
		// Neither start nor end are at a multiple of the target's extents.
		off, n := uint64(i)*2*mib+4096, uint64(mib+8192)
		if err := c.do(off, n); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		expect(t, f, int64(off), int(n), 0)
		expect(t, f, int64(off)-4096, 4096, 0xaa)
		expect(t, f, int64(off+n), 4096, 0xaa)
	}
	if after := e.allocated(v); after >= before {
		t.Errorf("discard freed nothing: %d bytes, then %d", before, after)
	}
	e.ok(v.grow(96 * mib))
	if n := blockSize64(t, f); n != 96*mib {
		t.Fatalf("after growing: %d bytes", n)
	}
	if _, err := f.WriteAt(aligned(4096, 0xbb), 96*mib-4096); err != nil {
		t.Fatal(err)
	}
	if u, err := v.stats(); err != nil || u.Total != 96*mib {
		t.Fatalf("%v, %v", u, err)
	}
	if _, err := f.WriteAt(aligned(512, 0xcc), 512); err != nil {
		t.Fatalf("a single 512-byte sector: %v", err)
	}
	expect(t, f, 512, 512, 0xcc)
	expect(t, f, 1024, 512, 0xaa)

	// The device is removed only when no process has it open, by any path.
	_, err := e.plugin.Node.NodeUnpublishVolume(e.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	e.code(err, codes.FailedPrecondition)
	e.ok(f.Close())
	var st unix.Stat_t
	e.ok(unix.Stat(v.target, &st))
	v.unpublish()
	f, err = os.Open(filepath.Join("/dev", "loop"+strconv.Itoa(int(unix.Minor(st.Rdev)))))
	e.ok(err)
	_, err = e.plugin.Node.NodeUnstageVolume(e.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	e.code(err, codes.FailedPrecondition)
	e.ok(f.Close())
	v.unstage()

	// Buffered writes are flushed on the way down.
	v.stage()
	v.publish()
	b, err := os.OpenFile(v.target, os.O_WRONLY, 0)
	e.ok(err)
	_, err = b.WriteAt(aligned(mib, 0xdd), 32*mib)
	e.ok(err)
	e.ok(b.Close())
	v.unpublish()
	v.unstage()
	v.stage()
	v.publish()
	f = v.open()
	expect(t, f, 32*mib, mib, 0xdd)
	e.ok(f.Close())
	v.down()
}

// Growing a device while it is read and written everywhere, the new end included.
func TestExpandUnderLoad(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("busy", 64*mib, raw(writer), nil).up()
	f := v.open()
	size := int64(64 * mib)
	stop, failed := make(chan struct{}), make(chan error, 8)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			b := aligned(4096, byte(w+1))
			for i := int64(w); ; i += 8 {
				select {
				case <-stop:
					return
				default:
				}
				off := i * 4096 % (64 * mib)
				_, err := f.WriteAt(b, off)
				if err == nil {
					_, err = f.ReadAt(b, off)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	for range 8 {
		size += 16 * mib
		e.ok(v.grow(size))
		if n := blockSize64(t, f); n != size {
			t.Errorf("%d bytes, want %d", n, size)
		}
		expect(t, f, size-mib, mib, 0)
		if _, err := f.WriteAt(aligned(mib, 0xee), size-mib); err != nil {
			t.Errorf("write to the new end at %d: %v", size, err)
		}
		expect(t, f, size-mib, mib, 0xee)
	}
	close(stop)
	wg.Wait()
	select {
	case err := <-failed:
		t.Errorf("i/o while growing: %v", err)
	default:
	}
	e.ok(f.Close())
	v.down()
}

func (e *env) allocated(v *vol) uint64 {
	e.t.Helper()
	l, err := e.pair.Client(0).GetLUN(e.ctx, &targetv1.GetLUNRequest{Uuid: v.id})
	e.ok(err)
	return l.AllocatedBytes
}

// Which nodes may use a volume, and in which access mode.
func TestPublishRules(t *testing.T) {
	e := start(t, 2*time.Minute)
	const other = "iqn.2026-11.storage.gemel.test:other"
	publish := func(v *vol, node string, c *csi.VolumeCapability, ro bool) error {
		_, err := e.plugin.Controller.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: node, VolumeCapability: c, Readonly: ro})
		return err
	}
	single := e.create("single", 320*mib, mounted("xfs"), nil)
	single.controllerPublish()
	e.code(publish(single, other, single.cap, false), codes.FailedPrecondition)
	e.code(publish(single, single.node, single.cap, true), codes.AlreadyExists)
	e.code(publish(single, single.node, raw(writer), false), codes.InvalidArgument)
	single.controllerUnpublish()
	e.ok(publish(single, other, single.cap, false))
	list, err := e.plugin.Controller.ListVolumes(e.ctx, &csi.ListVolumesRequest{})
	e.ok(err)
	if got := list.Entries[0].Status.PublishedNodeIds; len(list.Entries) != 1 || len(got) != 1 || got[0] != other {
		t.Fatalf("%v", list)
	}
	// The publish context of another node's name does not work here.
	single.controllerUnpublish()
	single.pub = map[string]string{"hostIQN": other, "targetIQN": e.pair.IQN(), "portals": e.pair.ISCSI[0], "lun": "0", "wwid": "60", "generation": "1"}
	e.code(single.tryStage(), codes.FailedPrecondition)
	_, err = e.plugin.Controller.ControllerUnpublishVolume(e.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: single.id}) // from all
	e.ok(err)

	multi := raw(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	shared := e.create("shared", 64*mib, multi, nil)
	e.ok(publish(shared, shared.node, multi, false))
	e.ok(publish(shared, other, multi, false))

	// One writer among several nodes.
	lone := raw(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER)
	led := e.create("led", 64*mib, lone, nil)
	e.ok(publish(led, other, lone, true))
	e.ok(publish(led, led.node, lone, false))
	e.ok(publish(led, led.node, lone, false))
	e.code(publish(led, "iqn.2026-11.storage.gemel.test:third", lone, false), codes.FailedPrecondition)
	e.ok(publish(led, "iqn.2026-11.storage.gemel.test:third", lone, true))
	readers := raw(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	e.code(publish(led, other, readers, false), codes.OK) // as it is published there already
	_, err = e.plugin.Controller.CreateVolume(e.ctx, &csi.CreateVolumeRequest{Name: "shared fs", VolumeCapabilities: []*csi.VolumeCapability{{
		AccessType: mounted("xfs").AccessType, AccessMode: multi.AccessMode}}})
	e.code(err, codes.InvalidArgument)
	// The scheduler gets a limit.
	info, err := e.plugin.Node.NodeGetInfo(e.ctx, &csi.NodeGetInfoRequest{})
	e.ok(err)
	if n := info.MaxVolumesPerNode; n < 1 || n > 128 {
		t.Errorf("%d volumes", n)
	}

	// Read-only, and enforced by the storage.
	ro := e.create("readonly", 64*mib, raw(writer), nil)
	r, err := e.plugin.Controller.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: ro.id, NodeId: ro.node, VolumeCapability: ro.cap, Readonly: true})
	e.ok(err)
	ro.pub = r.PublishContext
	ro.stage()
	ro.publish()
	if f, err := os.OpenFile(ro.target, os.O_RDWR, 0); err == nil {
		if _, err = f.WriteAt(aligned(4096, 1), 0); err == nil {
			err = f.Sync()
		}
		_ = f.Close()
		if err == nil {
			t.Fatal("a read-only volume was written")
		}
	}
	ro.unpublish()
	ro.unstage()

	// The same with a filesystem.
	fs := e.create("fs readonly", 320*mib, mounted("xfs"), nil).up()
	e.ok(fs.write("f", "alpha"))
	fs.unpublish()
	fs.unstage()
	fs.controllerUnpublish()
	r, err = e.plugin.Controller.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: fs.id, NodeId: fs.node, VolumeCapability: fs.cap, Readonly: true})
	e.ok(err)
	fs.pub = r.PublishContext
	fs.stage()
	fs.publish()
	fs.read("f", "alpha")
	if err := fs.write("g", "beta"); !errors.Is(err, unix.EROFS) {
		t.Fatalf("a write to a read-only filesystem: %v", err)
	}
	if h := fs.health(); len(h) != 0 {
		t.Fatalf("health %v", h)
	}
	fs.down()

	// One path at a time, mounted or raw, by the mode of ReadWriteOncePod; the same one again, and
	// another one after it.
	once := mounted("ext4")
	once.AccessMode = &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER}
	pod := e.create("once", 64*mib, once, nil).up()
	first := pod.target
	pod.publish()
	pod.target = filepath.Join(e.dir, "pods", "another", "mount")
	_, err = e.plugin.Node.NodePublishVolume(e.ctx, &csi.NodePublishVolumeRequest{VolumeId: pod.id, PublishContext: pod.pub,
		StagingTargetPath: pod.staging, TargetPath: pod.target, VolumeCapability: once})
	e.code(err, codes.FailedPrecondition)
	pod.target, first = first, pod.target
	pod.unpublish()
	pod.target = first
	pod.publish()
	pod.down()

	one := e.create("one path", 64*mib, raw(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER), nil).up()
	_, err = e.plugin.Node.NodePublishVolume(e.ctx, &csi.NodePublishVolumeRequest{VolumeId: one.id, PublishContext: one.pub,
		StagingTargetPath: one.staging, TargetPath: filepath.Join(e.dir, "pods", "second"), VolumeCapability: one.cap})
	e.code(err, codes.FailedPrecondition)
	one.down()
}
