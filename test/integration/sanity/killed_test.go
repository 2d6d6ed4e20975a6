package sanity

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// call is one of the kubelet's, and what it leaves on the way, in order: after each of these the
// plugin is killed once.
type call struct {
	name   string
	do     func(v *vol) error
	states []state
}

type state struct {
	name string
	is   func(v *vol) bool
}

func exists(path func(*vol) string) func(*vol) bool {
	return func(v *vol) bool { _, err := os.Lstat(path(v)); return err == nil }
}

func gone(is func(*vol) bool) func(*vol) bool { return func(v *vol) bool { return !is(v) } }

func isMounted(path func(*vol) string) func(*vol) bool {
	return func(v *vol) bool { ok, err := mountinfo.Mounted(path(v)); return ok && err == nil }
}

func (v *vol) stageRecord() string {
	return filepath.Join(v.e.plugin.StateDir(), "staged", v.id+".json")
}
func (v *vol) attachRecord() string { return filepath.Join(v.folder(), "record.json") }
func (v *vol) fuse() string         { return filepath.Join(v.folder(), "mnt") }

// loop is the name of the volume's loop device, empty without one.
func (v *vol) loop() string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.HasPrefix(filepath.Base(string(b)), v.id+".") {
			return strings.Split(f, "/")[3]
		}
	}
	return ""
}

// runs reports whether a command works on the volume's device.
func runs(command string) func(*vol) bool {
	return func(v *vol) bool {
		device := v.loop()
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range files {
			args := strings.Split(strings.TrimRight(string(must(os.ReadFile(f))), "\x00"), "\x00")
			if device != "" && strings.HasPrefix(filepath.Base(args[0]), command) && args[len(args)-1] == "/dev/"+device {
				return true
			}
		}
		return false
	}
}

func must[T any](x T, _ error) T { return x }

func holds(path func(*vol) string, text func(*vol) string) func(*vol) bool {
	return func(v *vol) bool { b, _ := os.ReadFile(path(v)); return strings.Contains(string(b), text(v)) }
}

const before, after = 320 * mib, 448 * mib

// calls are the kubelet's of a volume's life.
func calls() []call {
	staging, target := func(v *vol) string { return v.staging }, func(v *vol) string { return v.target }
	bound := func(v *vol) bool { return v.loop() != "" }
	served := func(v *vol) bool { return len(holdersBelow(v.folder())) > 0 }
	return []call{
		{"stage", (*vol).tryStage, []state{{"stage record", exists((*vol).stageRecord)}, {"attachment record", exists((*vol).attachRecord)},
			{"holder", served}, {"FUSE mount", isMounted((*vol).fuse)}, {"loop device", bound}, {"mkfs", runs("mkfs.")}, {"mount", isMounted(staging)}}},
		{"publish", (*vol).tryPublish, []state{{"target record", holds((*vol).stageRecord, target)}, {"target", exists(target)}, {"bind mount", isMounted(target)}}},
		{"expand", func(v *vol) error { return v.tryNodeExpand(after) }, []state{{"device", func(v *vol) bool {
			b, _ := os.ReadFile("/sys/block/" + v.loop() + "/size")
			return strings.TrimSpace(string(b)) == fmt.Sprint(after/512)
		}}}},
		{"unpublish", (*vol).tryUnpublish, []state{{"no bind mount", gone(isMounted(target))}, {"no target", gone(exists(target))},
			{"no target record", gone(holds((*vol).stageRecord, target))}}},
		{"unstage", (*vol).tryUnstage, []state{{"no mount", gone(isMounted(staging))}, {"no loop device", gone(bound)}, {"no FUSE mount", gone(isMounted((*vol).fuse))},
			{"no holder", gone(served)}, {"no attachment record", gone(exists((*vol).attachRecord))}, {"no stage record", gone(exists((*vol).stageRecord))}}},
	}
}

func (v *vol) tryPublish() error {
	if err := os.MkdirAll(filepath.Dir(v.target), 0o755); err != nil {
		return err
	}
	_, err := v.e.plugin.Node.NodePublishVolume(v.e.ctx, &csi.NodePublishVolumeRequest{VolumeId: v.id, PublishContext: v.pub,
		StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: v.cap})
	return err
}

func (v *vol) tryUnpublish() error {
	_, err := v.e.plugin.Node.NodeUnpublishVolume(v.e.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	return err
}

func (v *vol) tryUnstage() error {
	_, err := v.e.plugin.Node.NodeUnstageVolume(v.e.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

// tryNodeExpand makes the node follow. ext4 does not grow while it is mounted on every kernel, and
// then does when it is staged.
func (v *vol) tryNodeExpand(size int64) error {
	_, err := v.e.plugin.Node.NodeExpandVolume(v.e.ctx, &csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: v.target, StagingTargetPath: v.staging,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: v.cap})
	if status.Code(err) == codes.FailedPrecondition && v.cap.GetMount().GetFsType() == "ext4" {
		return nil
	}
	return err
}

// killedAt makes a call during which the plugin dies as soon as a state is seen; it returns false
// when the call was over before. The call is then made again, until it succeeds, as a kubelet does.
func (v *vol) killedAt(c call, s state) bool {
	v.e.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.do(v) }()
	hit := false
	for over := false; !over && !hit; {
		select {
		case err := <-done:
			over = true
			done <- err
		default:
			hit = s.is(v)
		}
	}
	v.e.ok(v.e.plugin.Kill())
	first := <-done
	v.e.ok(v.e.plugin.Start(v.e.ctx))
	v.again(c)
	return hit && first != nil
}

// again makes a call until it succeeds. A command of the killed plugin may still have the device.
func (v *vol) again(c call) {
	v.e.t.Helper()
	v.e.ok(harness.Wait(v.e.ctx, c.name+" succeeds", func() (bool, string) {
		err := c.do(v)
		return err == nil, fmt.Sprint(err)
	}))
}

// nothingLeft checks that a volume that is down has left nothing on its machine.
func (v *vol) nothingLeft(when string) {
	v.e.t.Helper()
	for what, is := range map[string]func(*vol) bool{"stage record": exists((*vol).stageRecord), "attachment": exists((*vol).folder),
		"staging mount": isMounted(func(v *vol) string { return v.staging }), "target": exists(func(v *vol) string { return v.target }),
		"loop device": func(v *vol) bool { return v.loop() != "" }, "holder": func(v *vol) bool { return len(holdersBelow(v.folder())) > 0 }} {
		if is(v) {
			v.e.t.Errorf("%s: the %s is left", when, what)
		}
	}
}

// skipped are steps that a kind of volume does not have, and steps that are the same for all kinds.
func skipped(kind, call, state string) bool {
	switch kind {
	case "ext4":
		return call != "stage" && call != "expand"
	case "raw":
		return call == "stage" && (state == "mkfs" || state == "mount") || call == "unstage" && state == "no mount" || call == "expand"
	}
	return false
}

// The plugin is killed at every step that leaves something, and called again by the next one: the
// volume works, and at its end nothing is left.
func TestPluginKilledAtEveryStep(t *testing.T) {
	start(t, 8*time.Minute).killEverywhere(map[string]*csi.VolumeCapability{"xfs": mounted("xfs"), "ext4": mounted("ext4"), "raw": raw(writer)}, skipped)
}

// The same where holders are the children of an agent, as in a cluster, for what has to do with
// holders.
func TestPluginKilledBesideItsAgent(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "agent.sock")
	e := start(t, 5*time.Minute, "--holder-agent", sock)
	e.agent(sock)
	e.killEverywhere(map[string]*csi.VolumeCapability{"raw": raw(writer)}, func(kind, call, state string) bool {
		return skipped(kind, call, state) || call != "stage" && call != "unstage"
	})
}

// killEverywhere plays one life of a volume for each kind and step that is not skipped.
func (e *env) killEverywhere(kinds map[string]*csi.VolumeCapability, skipped func(kind, call, state string) bool) {
	t := e.t
	t.Helper()
	hits, tries := 0, 0
	missed := map[string]int{}
	for kind, c := range kinds {
		for i, victim := range calls() {
			for j, s := range victim.states {
				if skipped(kind, victim.name, s.name) {
					continue
				}
				when := fmt.Sprintf("%s, killed in %s at %s", kind, victim.name, s.name)
				v := e.create(fmt.Sprintf("killed %s %d %d", kind, i, j), before, c, nil)
				v.controllerPublish()
				e.ok(os.MkdirAll(v.staging, 0o755))
				for _, now := range calls() {
					if now.name == "expand" {
						_, err := e.plugin.Controller.ControllerExpandVolume(e.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.id,
							CapacityRange: &csi.CapacityRange{RequiredBytes: after}})
						e.ok(err)
					}
					if now.name == victim.name {
						tries++
						if v.killedAt(now, s) {
							hits++
						} else {
							missed[kind+" "+victim.name+" "+s.name]++
						}
					} else if err := now.do(v); err != nil {
						t.Fatalf("%s: %s: %v", when, now.name, err)
					}
					if now.name == "publish" && kind != "raw" {
						e.ok(v.write("f", "alpha"))
					}
					if now.name == "expand" {
						if u, err := v.stats(); err != nil || kind != "ext4" && u.Total < 350*mib {
							t.Errorf("%s: after growing: %v, %v", when, u, err)
						}
						if kind != "raw" {
							v.read("f", "alpha")
						}
						if h := v.health(); len(h) != 0 {
							t.Errorf("%s: health %v", when, h)
						}
					}
				}
				v.nothingLeft(when)
				v.controllerUnpublish()
				v.delete()
			}
		}
	}
	t.Logf("%d of %d calls were interrupted; over before it was seen: %v", hits, tries, missed)
	if hits < tries/3 {
		t.Errorf("only %d of %d calls were interrupted: %v", hits, tries, missed)
	}
}

// An mkfs.xfs that dies with its plugin leaves what blkid calls xfs and no kernel mounts. It is
// made again.
func TestFormattingThatWasCutShort(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("cut", 320*mib, mounted("xfs"), nil).up()
	e.ok(v.write("f", "alpha"))
	v.unpublish()
	e.ok(syscall.Unmount(v.staging, 0))
	// As it is after the first superblock: sb_inprogress is set.
	f, err := os.OpenFile("/dev/"+v.loop(), os.O_RDWR, 0)
	e.ok(err)
	_, err = f.WriteAt([]byte{1}, 126)
	e.ok(err)
	e.ok(f.Sync())
	e.ok(f.Close())
	if out, err := exec.CommandContext(e.ctx, "blkid", "-p", "-o", "value", "-s", "TYPE", "/dev/"+v.loop()).Output(); err != nil || strings.TrimSpace(string(out)) != "xfs" {
		t.Fatalf("blkid says %q, %v: this test shows nothing", out, err)
	}
	e.ok(e.plugin.Kill())
	e.ok(e.plugin.Start(e.ctx))
	v.stage()
	v.publish()
	e.ok(v.write("g", "beta"))
	v.read("g", "beta")
	v.down()
	v.nothingLeft("at the end")
}

// A clone and a restored snapshot that are larger than their source have a filesystem of their own
// size when they are staged, for either filesystem, although the source was in use and neither has
// been unmounted in an orderly way.
func TestLargerCopiesGrowWhenStaged(t *testing.T) {
	e := start(t, 3*time.Minute)
	for _, fs := range []string{"xfs", "ext4"} {
		v := e.create("source "+fs, 320*mib, mounted(fs), nil).up()
		e.ok(v.write("f", "alpha"))
		had, err := v.stats()
		e.ok(err)
		snap, err := e.plugin.Controller.CreateSnapshot(e.ctx, &csi.CreateSnapshotRequest{Name: "snap " + fs, SourceVolumeId: v.id})
		e.ok(err)
		for name, source := range map[string]*csi.VolumeContentSource{
			"restored": {Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.Snapshot.SnapshotId}}},
			"clone":    {Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.id}}},
		} {
			c := e.create(name+" "+fs, 1024*mib, mounted(fs), source).up()
			c.read("f", "alpha")
			// The filesystem keeps some space for itself, and has the added space.
			if u, err := c.stats(); err != nil || u.Total < had.Total+(1024-320)*mib*9/10 {
				t.Errorf("%s, %s: %v, the source has %v (%v)", fs, name, u, had, err)
			}
			e.ok(c.write("more", "beta"))
			c.unpublish()
			c.unstage()
			c.stage() // as large as it is: nothing to do
			c.publish()
			c.read("more", "beta")
			c.down()
		}
		v.read("f", "alpha")
		v.down()
		_, err = e.plugin.Controller.DeleteSnapshot(e.ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap.Snapshot.SnapshotId})
		e.ok(err)
	}
}
