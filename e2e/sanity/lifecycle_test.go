package sanity

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/e2e/harness"
)

// A filesystem volume through its whole life, while the plugin comes and goes.
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

	// Without the plugin, I/O goes on.
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

	// A snapshot, and a larger clone of it mounted beside its source: the same XFS UUID twice on one node.
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

// The death of the process that serves a volume is an I/O error, never a hang, and everything can be cleaned up and
// staged again.
func TestHolderKilled(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("killed", 320*mib, mounted("xfs"), nil).up()
	e.ok(v.write("f", "alpha"))
	e.ok(syscall.Kill(v.holder(), syscall.SIGKILL))
	e.ok(harness.Wait(e.ctx, "writes fail", func() (bool, string) {
		err := v.write("g", "beta")
		return err != nil, "they succeed"
	}))
	if h := v.health(); len(h) != 1 || h[0].Status != csi.VolumeHealthErrorType_INACCESSIBLE {
		t.Fatalf("health %v", h)
	}
	if _, err := v.stats(); err == nil {
		t.Fatal("statistics of a dead volume")
	}
	v.unpublish()
	v.unstage()
	v.stage()
	v.publish()
	v.read("f", "alpha")

	// And when it is staged again without having been unstaged.
	e.ok(syscall.Kill(v.holder(), syscall.SIGKILL))
	v.stage()
	v.publish()
	v.read("f", "alpha")
	e.ok(v.write("h", "gamma"))
	v.down()
}

// A worker that was cut off and comes back finds its old attachment torn down before the new one is used.
func TestNewGenerationReplacesTheOld(t *testing.T) {
	e := start(t, 2*time.Minute)
	for _, c := range []*csi.VolumeCapability{mounted("xfs"), raw(writer)} {
		v := e.create("gen"+strings.ToLower(c.String()[:5]), 320*mib, c, nil).up()
		old, holder := v.pub, v.holder()
		v.controllerUnpublish() // fenced, without the node's knowledge
		v.controllerPublish()
		if v.pub["generation"] == old["generation"] {
			t.Fatal("the generation is the same")
		}
		began := time.Now()
		v.stage()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("staging took %v: it waited for the dead device", took)
		}
		if v.holder() == holder {
			t.Fatal("the old holder serves the new publish")
		}
		v.publish()
		if c.GetMount() != nil {
			e.ok(v.write("f", "alpha"))
			v.read("f", "alpha")
		} else {
			f := v.open()
			if _, err := f.WriteAt(aligned(4096, 7), 0); err != nil {
				t.Fatal(err)
			}
			e.ok(f.Close())
		}
		// A late call of the old generation must not take the new one away.
		fresh := v.pub
		v.pub = old
		e.code(v.tryStage(), codes.InvalidArgument)
		v.pub = fresh
		v.stage()
		v.down()
	}
}

// Whatever is gone already, and whatever a crash left half done, unstage cleans up.
func TestUnstageFromAnyState(t *testing.T) {
	e := start(t, 3*time.Minute, "--io-deadline", "3s") // bounds how long a device that hangs is waited for
	for _, c := range []struct {
		name   string
		damage func(v *vol)
	}{
		{"holder", func(v *vol) { e.ok(syscall.Kill(v.holder(), syscall.SIGKILL)) }},
		{"socket", func(v *vol) { e.ok(os.Remove(filepath.Join(v.folder(), "ctl.sock"))) }},
		{"staging mount", func(v *vol) { e.ok(syscall.Unmount(v.staging, 0)) }},
		{"fuse mount", func(v *vol) { e.ok(syscall.Unmount(filepath.Join(v.folder(), "mnt"), syscall.MNT_DETACH)) }},
		{"stopped holder", func(v *vol) {
			e.ok(syscall.Unmount(v.staging, 0))
			e.ok(syscall.Kill(v.holder(), syscall.SIGSTOP))
		}},
		{"attachment", func(v *vol) {
			e.ok(syscall.Unmount(v.staging, 0))
			_, err := e.plugin.Purge(e.ctx)
			e.ok(err)
		}},
		{"node record", func(v *vol) {
			e.ok(syscall.Unmount(v.staging, 0))
			e.ok(os.Remove(filepath.Join(e.plugin.StateDir(), "staged", v.id+".json")))
		}},
		{"half made", func(v *vol) {
			e.ok(syscall.Unmount(v.staging, 0))
			_, err := e.plugin.Purge(e.ctx)
			e.ok(err)
			// What is there when the plugin dies right after it wrote the record.
			e.ok(os.MkdirAll(filepath.Join(v.folder(), "mnt"), 0o700))
			boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
			e.ok(err)
			e.ok(os.WriteFile(filepath.Join(v.folder(), "record.json"), []byte(`{"version":1,"bootID":"`+strings.TrimSpace(string(boot))+
				`","attachment":{"volumeID":"`+v.id+`"},"inode":4711,"file":"x"}`), 0o600))
		}},
	} {
		v := e.create("state "+c.name, 320*mib, mounted("xfs"), nil)
		v.controllerPublish()
		v.stage()
		c.damage(v)
		e.ok(e.plugin.Kill())
		e.ok(e.plugin.Start(e.ctx))
		began := time.Now()
		v.unstage()
		t.Logf("%s: %v", c.name, time.Since(began).Round(time.Millisecond))
		if _, err := os.Stat(v.folder()); !os.IsNotExist(err) {
			t.Errorf("%s: the attachment's folder stays: %v", c.name, err)
		}
		v.controllerUnpublish()
		v.delete()
	}
}

// The owner dies under a mounted volume: nothing is seen of it but a pause, and the controller works through the other node.
func TestFailoverUnderAMount(t *testing.T) {
	e := start(t, 3*time.Minute)
	r, err := e.plugin.Controller.CreateVolume(e.ctx, &csi.CreateVolumeRequest{Name: "ha", VolumeCapabilities: []*csi.VolumeCapability{mounted("xfs")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 320 * mib}, Parameters: map[string]string{"preferredNode": "a"}})
	e.ok(err)
	v := e.create("ha", r.Volume.CapacityBytes, mounted("xfs"), nil).up()
	e.ok(v.write("before", "alpha"))
	e.ok(e.pair.Kill(0))
	began := time.Now()
	e.ok(v.write("after", "beta"))
	t.Logf("first durable write after the owner's death: %v", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	e.ok(harness.Wait(e.ctx, "the lost path is reported", func() (bool, string) {
		h := v.health()
		return len(h) == 1 && h[0].Reason == "HostRedundancyLost", "no finding"
	}))
	other := e.create("made by one node", 320*mib, mounted("xfs"), nil).up()
	other.down()
	e.ok(e.pair.StartNode(0))
	e.ok(e.pair.WaitInSync(e.ctx))
	e.ok(harness.Wait(e.ctx, "both paths are back", func() (bool, string) { return len(v.health()) == 0, "a finding" }))
	v.read("before", "alpha")
	v.read("after", "beta")
	v.down()
}
