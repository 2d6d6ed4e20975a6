package sanity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
	"github.com/gemel-storage/gemel/internal/testkit/plugin"
)

// eachBackend plays a test with either backend.
func eachBackend(t *testing.T, play func(*testing.T, *env)) {
	for _, backend := range []string{"direct", "objects"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "objects" {
				needAPIServer(t)
			}
			t.Setenv(backendVariable, backend)
			play(t, start(t, 4*time.Minute))
		})
	}
}

// Files that were synced before the snapshot of a volume that is mounted are all in what is made
// from it and mounted read-only, on two workers at once: ReadOnlyMany. What is synced is in the log
// of the filesystem, and not yet anywhere else.
func TestReadersOfASnapshot(t *testing.T) {
	eachBackend(t, func(t *testing.T, e *env) {
		other := e.worker()
		for _, fs := range []string{"xfs", "ext4"} {
			e.readers(other, fs)
		}
	})
}

// A worker that dies while it replays, with the device attached for writing, keeps others out until
// it is unpublished, and is fenced by that. The next one replays, and what the first one still has
// writes no more.
func TestReplayIsTakenOver(t *testing.T) {
	eachBackend(t, func(t *testing.T, e *env) {
		live, first, second := e.snapshotted(e.worker(), "xfs")
		first.controllerPublish()
		_, err := second.e.plugin.Controller.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: second.id, NodeId: second.node, VolumeCapability: second.cap})
		e.code(err, codes.Unavailable)
		// Killed at some moment of the replay: the holder lives on.
		e.ok(os.MkdirAll(first.staging, 0o755))
		staged := make(chan error, 1)
		go func() { staged <- first.tryStage() }()
		e.ok(harness.Wait(e.ctx, "the first worker has attached the volume", func() (bool, string) {
			return len(holdersBelow(filepath.Join(e.dir, "csi"))) > 1, "" // the live volume's, and this one's
		}))
		e.ok(e.plugin.Kill())
		if err := <-staged; err == nil {
			t.Fatal("the first worker was through before it was killed")
		}
		_, err = second.e.plugin.Controller.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: second.id, NodeId: second.node, VolumeCapability: second.cap})
		e.code(err, codes.Unavailable)
		_, err = second.e.plugin.Controller.ControllerUnpublishVolume(e.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: first.id, NodeId: first.node})
		e.ok(err)
		e.ok(second.read100())
		for _, m := range e.mappings(second.id) {
			if !m.GetReadOnly() || m.HostIqn == first.node {
				t.Errorf("%v", m)
			}
		}
		// And back: what is left of the earlier publish goes.
		e.ok(e.plugin.Start(e.ctx))
		e.ok(first.read100())
		for _, v := range []*vol{first, second} {
			v.unpublish()
			v.unstage()
			v.controllerUnpublish()
		}
		first.delete()
		live.down()
	})
}

// worker starts the plugin of a second worker.
func (e *env) worker() *plugin.Plugin {
	e.t.Helper()
	dir := filepath.Join(e.dir, "w2")
	e.ok(os.MkdirAll(dir, 0o700))
	o := plugin.Options{Dir: dir, Binary: csiBinary, PairEndpoints: e.pair.Control[:], NodeIQN: "iqn.2026-11.storage.gemel.test:w2"}
	if e.api != nil {
		w, err := operator.Worker(e.ctx, e.cfg, systemNamespace, "sanity2", dir)
		e.ok(err)
		o.PairEndpoints = nil
		o.Args = []string{"--backend", "objects", "--kubeconfig", filepath.Join(e.dir, "kubeconfig"), "--node-object", "--node-name", "sanity2",
			"--enroll-endpoint", e.operator.Enroll, "--enroll-ca", w.CAFile, "--enroll-token", w.TokenFile}
	}
	p, err := plugin.New(o)
	e.ok(err)
	e.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			e.t.Errorf("stop of the second plugin: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if found, err := p.Purge(ctx); !e.t.Failed() && (err != nil || len(found) > 0) {
			e.t.Errorf("left behind by the second plugin: %q (%v)", found, err)
		}
		if e.t.Failed() {
			b, _ := os.ReadFile(p.LogFile())
			e.t.Logf("log of the second plugin:\n%s", tail(b))
		}
	})
	e.ok(p.Start(e.ctx))
	return p
}

const synced = 100 // files

// snapshotted is a volume that stays mounted, and one of its snapshot that is to be read on two
// workers.
func (e *env) snapshotted(other *plugin.Plugin, fs string) (live, first, second *vol) {
	e.t.Helper()
	live = e.create("live "+fs, 320*mib, mounted(fs), nil).up()
	for i := range synced {
		e.ok(live.write(fmt.Sprintf("f%d", i), "alpha"))
	}
	snap, err := e.plugin.Controller.CreateSnapshot(e.ctx, &csi.CreateSnapshotRequest{Name: "snap " + fs, SourceVolumeId: live.id})
	e.ok(err)
	c := mounted(fs)
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	first = e.create("readers "+fs, 320*mib, c, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.Snapshot.SnapshotId}}})
	twin := *first
	second = &twin
	second.e = &env{t: e.t, ctx: e.ctx, dir: e.dir, plugin: other, pair: e.pair, pair2: e.pair2, api: e.api}
	second.node = second.e.nodeID()
	second.staging, second.target = first.staging+" 2", first.target+" 2"
	return live, first, second
}

func (e *env) readers(other *plugin.Plugin, fs string) {
	e.t.Helper()
	live, first, second := e.snapshotted(other, fs)
	both := []*vol{first, second}
	for round := range 2 {
		began := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, len(both))
		for i, v := range both {
			wg.Go(func() { errs[i] = v.read100() })
		}
		wg.Wait()
		e.ok(errors.Join(errs...))
		e.t.Logf("%s, round %d: two workers have all %d files after %v", fs, round, synced, time.Since(began).Round(time.Millisecond))
		for _, m := range e.mappings(first.id) {
			if !m.GetReadOnly() {
				e.t.Errorf("%s: the target takes writes of %s", fs, m.HostIqn)
			}
		}
		if e.api != nil && round > 0 && (first.pub[attach.KeyReplay] != "" || second.pub[attach.KeyReplay] != "") {
			e.t.Errorf("%s: the log is replayed once more: %v, %v", fs, first.pub, second.pub)
		}
		for _, v := range both {
			if err := v.write("new", "beta"); !errors.Is(err, unix.EROFS) {
				e.t.Errorf("%s: a write to a read-only filesystem: %v", fs, err)
			}
			if h := v.health(); len(h) != 0 {
				e.t.Errorf("%s: health %v", fs, h)
			}
			v.stage() // again, with what the publish said: nothing changes
			v.read("f0", "alpha")
		}
		// A plugin that comes up again, and a worker that has lost what it had staged, find the
		// same publish.
		e.ok(e.plugin.Kill())
		e.ok(e.plugin.Start(e.ctx))
		first.unpublish()
		first.unstage()
		first.stage()
		first.publish()
		first.read("f99", "alpha")
		for _, v := range both {
			v.unpublish()
			v.unstage()
			v.controllerUnpublish()
		}
	}
	first.delete()
	live.down()
}

// read100 publishes and stages a volume as a CO does, which calls again after UNAVAILABLE and
// ABORTED, and reads it.
func (v *vol) read100() error {
	for {
		r, err := v.e.plugin.Controller.ControllerPublishVolume(v.e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: v.node, VolumeCapability: v.cap})
		if err == nil {
			v.pub = r.PublishContext
			break
		}
		if c := status.Code(err); c != codes.Unavailable && c != codes.Aborted {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	if err := errors.Join(os.MkdirAll(v.staging, 0o755), os.MkdirAll(filepath.Dir(v.target), 0o755)); err != nil {
		return err
	}
	for {
		err := v.tryStage()
		if err == nil {
			break
		}
		if c := status.Code(err); c != codes.Unavailable && c != codes.Aborted {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	if _, err := v.e.plugin.Node.NodePublishVolume(v.e.ctx, &csi.NodePublishVolumeRequest{VolumeId: v.id, PublishContext: v.pub,
		StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: v.cap}); err != nil {
		return err
	}
	missing := 0
	for i := range synced {
		if raw, err := os.ReadFile(filepath.Join(v.target, fmt.Sprintf("f%d", i))); err != nil || len(raw) != 5*4096 {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Errorf("%s on %s: %d of %d synced files are missing", v.cap.GetMount().FsType, v.node, missing, synced)
	}
	return nil
}

// mappings of a volume, by whichever pair holds it.
func (e *env) mappings(id string) []*targetv1.Mapping {
	e.t.Helper()
	for _, p := range []*harness.Pair{e.pair, e.pair2} {
		if p == nil {
			continue
		}
		r, err := p.Client(0).ListLUNs(e.ctx, &targetv1.ListLUNsRequest{})
		e.ok(err)
		for _, l := range r.Luns {
			if (l.Uuid == id || l.Name == id) && len(l.Mappings) > 0 {
				return l.Mappings
			}
		}
	}
	e.t.Fatalf("volume %s is mapped to no host", id)
	return nil
}
