package sanity

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

const mib = 1 << 20

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

func mounted(fs string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}}}
}

func raw(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
}

// vol is one volume on its way through a kubelet.
type vol struct {
	e               *env
	id              string
	cap             *csi.VolumeCapability
	node            string
	pub             map[string]string
	staging, target string
}

func (e *env) nodeID() string {
	e.t.Helper()
	r, err := e.plugin.Node.NodeGetInfo(e.ctx, &csi.NodeGetInfoRequest{})
	e.ok(err)
	return r.NodeId
}

func (e *env) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) code(err error, want codes.Code) {
	e.t.Helper()
	if status.Code(err) != want {
		e.t.Fatalf("got %v, want %v", err, want)
	}
}

func (e *env) create(name string, size int64, c *csi.VolumeCapability, source *csi.VolumeContentSource) *vol {
	e.t.Helper()
	parameters := map[string]string{"csi.storage.k8s.io/pvc/name": name}
	if e.api != nil {
		parameters[v1alpha1.ParamCluster] = operator.Cluster
	}
	r, err := e.plugin.Controller.CreateVolume(e.ctx, &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{c},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeContentSource: source, Parameters: parameters})
	e.ok(err)
	if r.Volume.CapacityBytes != size {
		e.t.Fatalf("%s has %d bytes, want %d", name, r.Volume.CapacityBytes, size)
	}
	e.ids = append(e.ids, r.Volume.VolumeId)
	return &vol{e: e, id: r.Volume.VolumeId, cap: c, node: e.nodeID(),
		staging: filepath.Join(e.dir, "stage", name), target: filepath.Join(e.dir, "pods", name, "mount")}
}

func (v *vol) controllerPublish() {
	v.e.t.Helper()
	r, err := v.e.plugin.Controller.ControllerPublishVolume(v.e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: v.node, VolumeCapability: v.cap})
	v.e.ok(err)
	v.pub = r.PublishContext
}

func (v *vol) tryStage() error {
	_, err := v.e.plugin.Node.NodeStageVolume(v.e.ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, PublishContext: v.pub,
		StagingTargetPath: v.staging, VolumeCapability: v.cap})
	return err
}

func (v *vol) stage() {
	v.e.t.Helper()
	v.e.ok(os.MkdirAll(v.staging, 0o755)) // the kubelet makes the staging path and the target's parent
	v.e.ok(v.tryStage())
}

func (v *vol) publish() {
	v.e.t.Helper()
	v.e.ok(os.MkdirAll(filepath.Dir(v.target), 0o755))
	_, err := v.e.plugin.Node.NodePublishVolume(v.e.ctx, &csi.NodePublishVolumeRequest{VolumeId: v.id, PublishContext: v.pub,
		StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: v.cap})
	v.e.ok(err)
}

// up is everything until a pod could start.
func (v *vol) up() *vol {
	v.e.t.Helper()
	v.controllerPublish()
	v.stage()
	v.publish()
	return v
}

func (v *vol) unpublish() {
	v.e.t.Helper()
	_, err := v.e.plugin.Node.NodeUnpublishVolume(v.e.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	v.e.ok(err)
	if _, err := os.Lstat(v.target); !os.IsNotExist(err) {
		v.e.t.Fatalf("target path after unpublish: %v", err)
	}
}

func (v *vol) unstage() {
	v.e.t.Helper()
	_, err := v.e.plugin.Node.NodeUnstageVolume(v.e.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	v.e.ok(err)
}

func (v *vol) controllerUnpublish() {
	v.e.t.Helper()
	_, err := v.e.plugin.Controller.ControllerUnpublishVolume(v.e.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: v.node})
	v.e.ok(err)
}

func (v *vol) delete() {
	v.e.t.Helper()
	_, err := v.e.plugin.Controller.DeleteVolume(v.e.ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	v.e.ok(err)
}

// down is everything after a pod has ended.
func (v *vol) down() {
	v.e.t.Helper()
	v.unpublish()
	v.unstage()
	v.controllerUnpublish()
	v.delete()
}

// grow expands the LUN and makes the node follow; it returns the node's answer.
func (v *vol) grow(size int64) error {
	v.e.t.Helper()
	r, err := v.e.plugin.Controller.ControllerExpandVolume(v.e.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.id,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: v.cap})
	v.e.ok(err)
	if r.CapacityBytes != size || !r.NodeExpansionRequired {
		v.e.t.Fatalf("expand: %v", r)
	}
	_, err = v.e.plugin.Node.NodeExpandVolume(v.e.ctx, &csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: v.target, StagingTargetPath: v.staging,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: v.cap})
	return err
}

func (v *vol) stats() (*csi.VolumeUsage, error) {
	r, err := v.e.plugin.Node.NodeGetVolumeStats(v.e.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target})
	if err != nil {
		return nil, err
	}
	return r.Usage[0], nil
}

func (v *vol) health() []*csi.VolumeHealth_VolumeHealthEntry {
	v.e.t.Helper()
	r, err := v.e.plugin.Node.NodeGetVolumeHealth(v.e.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	v.e.ok(err)
	return r.VolumeHealth.HealthStatuses
}

// write makes a file in the volume, durably.
func (v *vol) write(name, content string) error {
	f, err := os.Create(filepath.Join(v.target, name))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := io.WriteString(f, strings.Repeat(content, 4096)); err != nil {
		return err
	}
	return f.Sync()
}

func (v *vol) read(name, content string) {
	v.e.t.Helper()
	got, err := os.ReadFile(filepath.Join(v.target, name))
	v.e.ok(err)
	if string(got) != strings.Repeat(content, 4096) {
		v.e.t.Fatalf("%s holds %d bytes, not what was written", name, len(got))
	}
}

// folder of the attachment, and its holder's pid.
func (v *vol) folder() string { return filepath.Join(v.e.plugin.StateDir(), "attach", v.id) }

// shown is all that can be seen of a volume that is staged: its holder's arguments and environment,
// the publish context, the files of driver and plugin. The targets keep secrets, and raw data is
// not a place where they could come.
func (e *env) shown(v *vol) (text string) {
	e.t.Helper()
	for _, f := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(v.holder()), f))
		e.ok(err)
		text += string(b)
	}
	for _, s := range v.pub {
		text += s
	}
	e.ok(filepath.WalkDir(e.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(e.dir, "pair")) || strings.Contains(path, "/mnt/") {
			return nil
		}
		b, err := os.ReadFile(path)
		text += string(b)
		return err
	}))
	return text
}

func (v *vol) holder() int {
	v.e.t.Helper()
	b, err := os.ReadFile(filepath.Join(v.folder(), "holder.json"))
	v.e.ok(err)
	var id struct{ PID int }
	v.e.ok(json.Unmarshal(b, &id))
	return id.PID
}

// device of a raw volume, unbuffered.
func (v *vol) open() *os.File {
	v.e.t.Helper()
	f, err := os.OpenFile(v.target, os.O_RDWR|syscall.O_DIRECT, 0)
	v.e.ok(err)
	v.e.t.Cleanup(func() { _ = f.Close() })
	return f
}

// aligned returns a buffer that O_DIRECT takes.
func aligned(n int, fill byte) []byte {
	b := make([]byte, n+4096)
	off := 4096 - int(uintptr(unsafe.Pointer(&b[0]))%4096)
	b = b[off : off+n]
	for i := range b {
		b[i] = fill
	}
	return b
}

func expect(t *testing.T, f *os.File, off int64, n int, fill byte) {
	t.Helper()
	b := aligned(n, ^fill)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, aligned(n, fill)) {
		t.Fatalf("[%d, %d) is not all %#x", off, off+int64(n), fill)
	}
}

func blockSize64(t *testing.T, f *os.File) int64 {
	t.Helper()
	var n uint64
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n))); e != 0 {
		t.Fatal(e)
	}
	return int64(n)
}

func blockRange(f *os.File, req uint, off, n uint64) error {
	r := [2]uint64{off, n}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(req), uintptr(unsafe.Pointer(&r))); e != 0 {
		return e
	}
	return nil
}
