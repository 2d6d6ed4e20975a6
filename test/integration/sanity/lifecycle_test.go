package sanity

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A filesystem volume through its whole life, while the plugin is restarted.
func TestFilesystemVolume(t *testing.T) {
	e := start(t, 3*time.Minute)
	v := e.create("fs", 320*mib, mounted("xfs"), nil)
	v.controllerPublish()
	v.stage()
	v.stage() // asking again changes nothing
	v.publish()
	v.publish()
	e.ok(v.write("before", "alpha"))
	if u, err := v.stats(); err != nil || u.Total < 250*mib || u.Total > 320*mib {
		t.Fatalf("stats %v, %v", u, err)
	}
	if h := v.health(); len(h) != 0 {
		t.Fatalf("health %v", h)
	}
	holder := v.holder()

	// Without the plugin, I/O continues.
	e.ok(e.plugin.Kill())
	e.ok(v.write("during", "beta"))
	v.read("before", "alpha")
	e.ok(e.plugin.Start(e.ctx))
	v.stage()
	v.publish()
	if v.holder() != holder {
		t.Fatal("the attachment did not survive the plugin")
	}

	// Growing online.
	e.ok(v.grow(480 * mib))
	if u, err := v.stats(); err != nil || u.Total < 400*mib {
		t.Fatalf("after growing: %v, %v", u, err)
	}
	e.ok(v.write("after", "gamma"))

	// A snapshot, and a larger clone of it mounted beside its source: the same XFS UUID twice on
	// one node.
	snap, err := e.plugin.Controller.CreateSnapshot(e.ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: v.id})
	e.ok(err)
	e.ok(v.write("later", "delta"))
	c := e.create("clone", 640*mib, mounted("xfs"), &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.Snapshot.SnapshotId}}}).up()
	for name, content := range map[string]string{"before": "alpha", "during": "beta", "after": "gamma"} {
		c.read(name, content)
	}
	if _, err := os.Stat(filepath.Join(c.target, "later")); !os.IsNotExist(err) {
		t.Fatalf("the clone holds what was written after the snapshot: %v", err)
	}
	if u, err := c.stats(); err != nil || u.Total < 560*mib {
		t.Fatalf("the clone's filesystem did not grow to its volume: %v, %v", u, err)
	}
	c.down()

	// Unstage by a plugin that did not stage.
	e.ok(e.plugin.Term())
	e.ok(e.plugin.Start(e.ctx))
	_, err = e.plugin.Node.NodeUnstageVolume(e.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	e.code(err, codes.FailedPrecondition) // still published
	v.unpublish()
	v.unstage()
	v.unstage()

	// And back, for the data.
	v.stage()
	v.publish()
	v.read("later", "delta")
	_, err = e.plugin.Controller.DeleteVolume(e.ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	e.code(err, codes.FailedPrecondition) // published
	v.down()
	_, err = e.plugin.Controller.DeleteSnapshot(e.ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap.Snapshot.SnapshotId})
	e.ok(err)
}

// ext4 grows at the latest when it is staged the next time.
func TestExt4Grows(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("ext4", 128*mib, mounted("ext4"), nil).up()
	e.ok(v.write("f", "alpha"))
	switch err := v.grow(512 * mib); status.Code(err) {
	case codes.OK, codes.FailedPrecondition:
		t.Logf("growing while mounted: %v", err)
	default:
		t.Fatal(err)
	}
	v.unpublish()
	v.unstage()
	v.stage()
	v.publish()
	v.read("f", "alpha")
	if u, err := v.stats(); err != nil || u.Total < 420*mib {
		t.Fatalf("%v, %v", u, err)
	}
	// A kubelet asks again until it succeeds.
	e.ok(v.grow(512 * mib))
	v.down()
}

// Many volumes at once do not disturb each other.
func TestManyVolumes(t *testing.T) {
	e := start(t, 3*time.Minute)
	var volumes []*vol
	for i := range 12 {
		v := e.create("many"+strconv.Itoa(i), 64*mib, raw(writer), nil)
		v.controllerPublish()
		e.ok(os.MkdirAll(v.staging, 0o755))
		volumes = append(volumes, v)
	}
	all := func(f func(v *vol) error) {
		t.Helper()
		errs := make(chan error, len(volumes))
		for _, v := range volumes {
			go func() { errs <- f(v) }()
		}
		for range volumes {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	all((*vol).tryStage)
	for i, v := range volumes {
		v.publish()
		f := v.open()
		_, err := f.WriteAt(aligned(4096, byte(i)), 0)
		e.ok(err)
		e.ok(f.Close())
	}
	for i, v := range volumes {
		f := v.open()
		expect(t, f, 0, 4096, byte(i))
		e.ok(f.Close())
		v.unpublish()
	}
	all(func(v *vol) error {
		_, err := e.plugin.Node.NodeUnstageVolume(e.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
		return err
	})
	for _, v := range volumes {
		v.controllerUnpublish()
		v.delete()
	}
}

// Credentials come with the calls and are stored nowhere.
func TestCHAP(t *testing.T) {
	e := start(t, 2*time.Minute)
	secrets := map[string]string{"chapUser": "worker", "chapSecret": "one-way-secret-1", "chapMutualUser": "array", "chapMutualSecret": "mutual-secret-22"}
	v := e.create("chap", 64*mib, raw(writer), nil)
	r, err := e.plugin.Controller.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: v.node, VolumeCapability: v.cap, Secrets: secrets})
	e.ok(err)
	v.pub = r.PublishContext
	e.ok(os.MkdirAll(v.staging, 0o755))
	if err := v.tryStage(); err == nil {
		t.Fatal("staged without the credentials")
	}
	_, err = e.plugin.Node.NodeStageVolume(e.ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, PublishContext: v.pub,
		StagingTargetPath: v.staging, VolumeCapability: v.cap, Secrets: secrets})
	e.ok(err)
	shown := e.shown(v)
	for _, s := range []string{"one-way-secret-1", "mutual-secret-22"} {
		if strings.Contains(shown, s) {
			t.Errorf("the secret %q shows in a file, an argument or the publish context", s)
		}
	}
	v.publish()
	v.down()
}
