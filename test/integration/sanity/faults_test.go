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

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// The death of the process that serves a volume is an I/O error, never a hang, and everything can
// be cleaned up and staged again.
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

// A worker that was cut off and comes back finds its old attachment torn down before the new one is
// used.
func TestNewGenerationReplacesTheOld(t *testing.T) {
	e := start(t, 2*time.Minute)
	for _, c := range []*csi.VolumeCapability{mounted("xfs"), raw(writer)} {
		v := e.create("gen"+strings.ToLower(c.String()[:5]), 320*mib, c, nil).up()
		old, holder := v.pub, v.holder()
		v.controllerUnpublish() // fenced, and the node does not know
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
		// A late call of the old generation must not remove the new one.
		fresh := v.pub
		v.pub = old
		e.code(v.tryStage(), codes.InvalidArgument)
		v.pub = fresh
		v.stage()
		v.down()
	}
}

// A worker that was fenced and still uses the volume gets I/O errors soon, its health says why, and
// it can unstage the volume.
func TestFencedWhileInUse(t *testing.T) {
	e := start(t, 2*time.Minute, "--io-deadline", "60s", "--no-lun-after", "1s")
	v := e.create("fenced", 320*mib, raw(writer), nil).up()
	f := v.open()
	if _, err := f.WriteAt(aligned(4096, 7), 0); err != nil {
		t.Fatal(err)
	}
	v.controllerUnpublish()
	began := time.Now()
	if _, err := f.WriteAt(aligned(4096, 8), 0); err == nil {
		t.Fatal("a fenced worker has written")
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the write waited for %v", took)
	}
	if h := v.health(); len(h) != 1 || h[0].Status != csi.VolumeHealthErrorType_INACCESSIBLE || h[0].Reason != "NotMapped" {
		t.Errorf("health %v", h)
	}
	_ = f.Close()
	began = time.Now()
	v.unpublish()
	v.unstage()
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("giving it back took %v", took)
	}
	v.controllerPublish()
	v.stage()
	v.publish()
	f = v.open()
	expect(t, f, 0, 4096, 7)
	e.ok(f.Close())
	v.down()
}

// Unstage cleans up after a crash at any step, and with any part missing.
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
		{"everything, by a reboot", func(v *vol) {
			e.ok(syscall.Unmount(v.staging, 0))
			_, err := e.plugin.Purge(e.ctx)
			e.ok(err)
			e.ok(os.MkdirAll(filepath.Join(v.folder(), "mnt"), 0o700))
			e.ok(os.WriteFile(filepath.Join(v.folder(), "record.json"), []byte(`{"version":1,"bootID":"another",
				"attachment":{"volumeID":"`+v.id+`"},"inode":4711,"file":"x"}`), 0o600))
			v.stage() // the kubelet does so for a pod that stayed here
			if err := v.tryStage(); err != nil {
				t.Fatal(err)
			}
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

// The owner dies under a mounted volume: the application sees only a pause, and the controller
// works through the other node.
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
	sh, err := e.plugin.Node.NodeGetStorageHealth(e.ctx, &csi.NodeGetStorageHealthRequest{})
	e.ok(err)
	if len(sh.BackendHealth) != 1 || sh.BackendHealth[0].Status != csi.StorageHealthErrorType_STORAGE_DEGRADED {
		t.Fatalf("storage health %v", sh)
	}
	ch, err := e.plugin.Controller.ControllerGetVolumeHealth(e.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: v.id})
	e.ok(err)
	if s := ch.VolumeHealth.HealthStatuses; len(s) != 1 || s[0].Reason != "RedundancyLost" {
		t.Fatalf("controller's finding %v", s)
	}
	other := e.create("made by one node", 320*mib, mounted("xfs"), nil).up()
	other.down()
	e.ok(e.pair.StartNode(0))
	e.ok(e.pair.WaitInSync(e.ctx))
	e.ok(harness.Wait(e.ctx, "both paths are back", func() (bool, string) { return len(v.health()) == 0, "a finding" }))
	v.read("before", "alpha")
	v.read("after", "beta")
	v.down()
}

// Without any storage, a volume is unstaged in bounded time.
func TestUnstageWithoutStorage(t *testing.T) {
	e := start(t, 2*time.Minute, "--io-deadline", "2s")
	v := e.create("dark", 320*mib, mounted("xfs"), nil).up()
	e.ok(v.write("safe", "alpha"))
	f, err := os.Create(filepath.Join(v.target, "dirty"))
	e.ok(err)
	_, err = f.WriteString("not written yet")
	e.ok(err)
	e.ok(e.pair.Kill(0))
	e.ok(e.pair.Kill(1))
	e.ok(f.Close())
	e.ok(harness.Wait(e.ctx, "the volume is reported as inaccessible", func() (bool, string) {
		h := v.health()
		return len(h) == 1 && h[0].Status == csi.VolumeHealthErrorType_INACCESSIBLE, "no finding"
	}))
	began := time.Now()
	v.unpublish()
	v.unstage()
	t.Logf("gave up after %v", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	for i := range harness.Names {
		e.ok(e.pair.StartNode(i))
	}
	e.ok(e.pair.WaitInSync(e.ctx))
	v.stage()
	v.publish()
	v.read("safe", "alpha")
	v.down()
}
