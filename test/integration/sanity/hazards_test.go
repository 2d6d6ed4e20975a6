package sanity

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/gemel-storage/gemel/csi/attach/userspace/holder"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// The tests here are named after the hazards of docs/workers.md.

// A clone and a restored snapshot have the XFS UUID of their source: they are mounted beside it,
// which the kernel refuses without nouuid.
func TestHazard24ClonesMountBesideTheirSource(t *testing.T) {
	e := start(t, 3*time.Minute)
	source := e.create("source", 320*mib, mounted("xfs"), nil).up()
	e.ok(source.write("f", "alpha"))
	snap, err := e.plugin.Controller.CreateSnapshot(e.ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: source.id})
	e.ok(err)
	id := uuidOf(t, source)
	volumes := []*vol{source}
	for name, from := range map[string]*csi.VolumeContentSource{
		"restored": {Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.Snapshot.SnapshotId}}},
		"clone":    {Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.id}}},
	} {
		c := e.create(name, 320*mib, mounted("xfs"), from).up()
		if other := uuidOf(t, c); other != id {
			t.Errorf("%s has UUID %s, its source %s: this shows nothing", name, other, id)
		}
		volumes = append(volumes, c)
	}
	for _, v := range volumes { // each has its own content
		v.read("f", "alpha")
		e.ok(v.write("own", v.id))
	}
	for _, v := range volumes {
		v.read("own", v.id)
	}
	// Without nouuid the kernel refuses the second one.
	for i, v := range volumes[:2] {
		v.unpublish()
		e.ok(unix.Unmount(v.staging, 0))
		defer func() { _ = unix.Unmount(v.staging, 0) }() // if something fails
		if err := unix.Mount("/dev/"+v.loop(), v.staging, "xfs", 0, ""); (err == nil) != (i == 0) {
			t.Errorf("volume %d, without nouuid: %v: this shows nothing", i, err)
		}
	}
	e.ok(unix.Unmount(volumes[0].staging, 0))
	for _, v := range volumes[:2] {
		v.stage()
		v.publish()
		v.read("own", v.id)
	}
	for _, v := range volumes {
		v.down()
	}
	_, err = e.plugin.Controller.DeleteSnapshot(e.ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap.Snapshot.SnapshotId})
	e.ok(err)
}

func uuidOf(t *testing.T, v *vol) string {
	t.Helper()
	out, err := exec.CommandContext(v.e.ctx, "blkid", "-p", "-o", "value", "-s", "UUID", "/dev/"+v.loop()).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("blkid: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// fuseFile is what the loop device is bound to.
func (v *vol) fuseFile() string { return filepath.Join(v.fuse(), v.id+"."+v.pub["generation"]) }

func (v *vol) asked() holder.Answer {
	v.e.t.Helper()
	a, err := holder.Ask(v.e.ctx, v.folder(), holder.Request{Op: holder.OpStatus})
	v.e.ok(err)
	return a
}

// FALLOC_FL_ZERO_RANGE and a hole punched in the FUSE file are zeroes on both nodes, to the byte,
// and nothing beside them is touched.
func TestHazard28ZeroRangeZeroes(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("zeroes", 16*mib, raw(writer), nil).up()
	f := v.open()
	want := bytes.Repeat([]byte{0xaa}, 16*mib)
	_, err := f.WriteAt(aligned(16*mib, 0xaa), 0)
	e.ok(err)
	file, err := os.OpenFile(v.fuseFile(), os.O_RDWR, 0)
	e.ok(err)
	// Within a block of the target, across many, not at their bounds, and up to the end.
	for i, r := range [][2]int64{{4096, 512}, {mib + 512, 3*mib + 1024}, {8*mib - 4096, 8192}, {15 * mib, mib}} {
		mode := []uint32{unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE}[i%2]
		e.ok(unix.Fallocate(int(file.Fd()), mode, r[0], r[1]))
		clear(want[r[0] : r[0]+r[1]])
	}
	if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_ZERO_RANGE, 15*mib, 2*mib); err == nil {
		t.Error("zeroed beyond the end")
	}
	e.ok(file.Close())
	got := aligned(16*mib, 0x55)
	_, err = f.ReadAt(got, 0)
	e.ok(err)
	sameBytes(t, "the device", got, want)
	e.ok(f.Sync())
	e.ok(f.Close())
	for i, n := range harness.Names {
		image, err := os.ReadFile(filepath.Join(e.pair.State[i], "volumes", "default", "luns", v.id+".img"))
		e.ok(err)
		sameBytes(t, "node "+n, image, want)
	}
	v.down()
}

func sameBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, not %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %#02x, not %#02x", what, i, got[i], want[i])
		}
	}
}

// mkfs.xfs has the log zeroed and does not verify it; old data that is left in the log could be
// replayed.
func TestHazard28MkfsOverOldData(t *testing.T) {
	if _, err := exec.LookPath("xfs_repair"); err != nil {
		t.Skipf("needs xfs_repair (Debian: xfsprogs): %v", err)
	}
	e := start(t, 3*time.Minute)
	v := e.create("old", 320*mib, raw(writer), nil).up()
	f := v.open()
	junk := aligned(4*mib, 0xff)
	for off := int64(0); off < 320*mib; off += 4 * mib {
		_, err := f.WriteAt(junk, off)
		e.ok(err)
	}
	e.ok(f.Close())
	before := v.asked().Zeroes
	device := "/dev/" + v.loop()
	if out, err := exec.CommandContext(e.ctx, "mkfs.xfs", "-K", "-f", "-s", "size=4096", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if v.asked().Zeroes == before {
		t.Error("mkfs.xfs asked for no zeroes: this shows nothing")
	}
	f = v.open()
	at, n := xfsLog(t, f)
	for off := at + mib; off < at+n; off += mib { // its first records are written again
		expect(t, f, off, int(min(mib, at+n-off)), 0)
	}
	e.ok(f.Close())
	if out, err := exec.CommandContext(e.ctx, "xfs_repair", "-n", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	e.ok(os.MkdirAll(v.staging+".mnt", 0o755))
	e.ok(unix.Mount(device, v.staging+".mnt", "xfs", 0, ""))
	e.ok(os.WriteFile(v.staging+".mnt/f", []byte("alpha"), 0o600))
	e.ok(unix.Unmount(v.staging+".mnt", 0))
	v.down()
}

// xfsLog says where the log of a filesystem lies, in bytes, by its superblock (xfs_dsb of the
// kernel's xfs_format.h).
func xfsLog(t *testing.T, f *os.File) (at, n int64) {
	t.Helper()
	sb := aligned(4096, 0)
	if _, err := f.ReadAt(sb, 0); err != nil || string(sb[:4]) != "XFSB" {
		t.Fatalf("no XFS superblock: %v", err)
	}
	be := binary.BigEndian
	block, start, perGroup, blocks := int64(be.Uint32(sb[4:])), int64(be.Uint64(sb[48:])), int64(be.Uint32(sb[84:])), int64(be.Uint32(sb[96:]))
	group := start >> sb[124]
	if n = blocks * block; start == 0 || n < 2*mib {
		t.Fatalf("a log of %d bytes: this shows nothing", n)
	}
	return (group*perGroup + start - group<<sb[124]) * block, n
}

// The holder that serves the file is its own process, in its own session: its death would shut the
// filesystem down, the death of the plugin changes nothing.
func TestHazard28HolderIsItsOwnProcess(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("own", 16*mib, raw(writer), nil).up()
	pid := v.holder()
	if session, err := unix.Getsid(pid); err != nil || session != pid {
		t.Errorf("holder %d is of session %d (%v): a signal to the plugin's process group ends it", pid, session, err)
	}
	f := v.open()
	e.ok(e.plugin.Kill())
	_, err := f.WriteAt(aligned(mib, 0xab), 0)
	e.ok(err)
	e.ok(f.Sync())
	expect(t, f, 0, mib, 0xab)
	e.ok(f.Close())
	e.ok(e.plugin.Start(e.ctx))
	v.stage()
	if v.holder() != pid {
		t.Error("another holder serves it")
	}
	v.down()
}

// A loop device that a process has open when it is detached is removed when the process closes it:
// detaching has made it autoclear.
func TestHazard28Autoclear(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("open-"+filepath.Base(e.dir), 16*mib, raw(writer), nil).up() // no other run's, whose device may be left
	v.unpublish()
	f, err := os.Open("/dev/" + v.loop())
	e.ok(err)
	e.code(v.tryUnstage(), codes.FailedPrecondition)
	e.ok(e.plugin.Kill()) // no plugin is left to detach it
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	e.ok(err)
	if info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
		t.Error("the loop device is not autoclear")
		e.ok(unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)) // it is not left on the machine
	}
	e.ok(f.Close())
	e.ok(harness.Wait(e.ctx, "the loop device is gone", func() (bool, string) { return v.loop() == "", v.loop() }))
	e.ok(e.plugin.Start(e.ctx))
	v.down()
}

// Loop devices are identified by the inode that they are bound to. A loop device of another file
// with the same name stays as it is.
func TestHazard28ForeignLoopDevice(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("mine", 64*mib, raw(writer), nil).up()
	// Of the same name as ours, as after a copy of the state folder.
	file := filepath.Join(e.dir, "foreign", filepath.Base(v.fuseFile()))
	e.ok(os.MkdirAll(filepath.Dir(file), 0o755))
	e.ok(os.WriteFile(file, make([]byte, mib), 0o600))
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	e.ok(err)
	defer func() { _ = f.Close() }()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	e.ok(err)
	defer func() { _ = ctl.Close() }()
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	e.ok(err)
	dev, err := os.OpenFile(filepath.Join("/dev", "loop"+strconv.Itoa(n)), os.O_RDWR, 0)
	e.ok(err)
	t.Cleanup(func() {
		_ = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
		_ = dev.Close()
	})
	e.ok(unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(f.Fd())}))
	v.down()
	if _, err := unix.IoctlLoopGetStatus64(int(dev.Fd())); err != nil {
		t.Fatalf("the foreign loop device is gone: %v", err)
	}
	e.ok(unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0))
	e.ok(dev.Close())
}
