package upgrade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/gemel-storage/gemel/internal/testkit/plugin"
)

// The control API between releases: the driver of either one with targets of the other, and with
// one of each.
func TestDriverAndTargetsOfDifferentReleases(t *testing.T) {
	for _, c := range []struct {
		driver build
		nodes  [2]build
	}{
		{before, [2]build{now, now}}, {now, [2]build{before, before}},
		{before, [2]build{before, now}}, {now, [2]build{before, now}},
	} {
		t.Run(fmt.Sprintf("driver %s, targets %s and %s", c.driver.version, c.nodes[0].version, c.nodes[1].version), func(t *testing.T) {
			r := start(t, c.nodes)
			volumes(t, r.ctx, controller(t, r, c.driver))
		})
	}
}

// controller runs a driver's controller service on both nodes.
func controller(t *testing.T, r *rig, b build) csi.ControllerClient {
	t.Helper()
	p, err := plugin.New(plugin.Options{Dir: t.TempDir(), Binary: b.csi, PairEndpoints: r.Control[:], Args: []string{"--mode", "controller"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("stop the driver: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	info, err := p.Identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil || info.VendorVersion != b.version {
		t.Fatalf("the driver is %v, not %s: %v", info, b.version, err)
	}
	return p.Controller
}

// volumes takes a volume, its snapshot and copies of both through a life.
func volumes(t *testing.T, ctx context.Context, c csi.ControllerClient) {
	t.Helper()
	const mib = 1 << 20
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	access := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	create := func(name string, size int64, source *csi.VolumeContentSource) *csi.Volume {
		t.Helper()
		req := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeContentSource: source,
			VolumeCapabilities: []*csi.VolumeCapability{access}, Parameters: map[string]string{"preferredNode": "b", "writeCache": "write-through"}}
		v, err := c.CreateVolume(ctx, req)
		must(err)
		if v.Volume.CapacityBytes != size {
			t.Fatalf("%s has %d bytes", name, v.Volume.CapacityBytes)
		}
		again, err := c.CreateVolume(ctx, req)
		must(err)
		if again.Volume.VolumeId != v.Volume.VolumeId {
			t.Fatalf("%s was made twice", name)
		}
		return v.Volume
	}
	v := create("first", 8*mib, nil)
	snap, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{SourceVolumeId: v.VolumeId, Name: "snap"})
	must(err)
	if !snap.Snapshot.ReadyToUse || snap.Snapshot.SizeBytes != 8*mib {
		t.Fatalf("%v", snap)
	}
	restored := create("restored", 16*mib, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.Snapshot.SnapshotId}}})
	cloned := create("cloned", 8*mib, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.VolumeId}}})
	published, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.VolumeId, NodeId: host, VolumeCapability: access})
	must(err)
	if len(published.PublishContext) == 0 {
		t.Fatal("published with nothing")
	}
	grown, err := c.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.VolumeId, CapacityRange: &csi.CapacityRange{RequiredBytes: 12 * mib}, VolumeCapability: access})
	must(err)
	if grown.CapacityBytes != 12*mib {
		t.Fatalf("grown to %d", grown.CapacityBytes)
	}
	_, err = c.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: v.VolumeId, MutableParameters: map[string]string{"preferredNode": "a", "writeCache": "write-back"}})
	must(err)
	list, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{})
	must(err)
	if len(list.Entries) != 3 {
		t.Fatalf("%d volumes: %v", len(list.Entries), list)
	}
	room, err := c.GetCapacity(ctx, &csi.GetCapacityRequest{})
	must(err)
	if room.AvailableCapacity <= 0 {
		t.Fatalf("capacity %v", room)
	}
	_, err = c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.VolumeId, NodeId: host})
	must(err)
	_, err = c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap.Snapshot.SnapshotId})
	must(err)
	for _, id := range []string{v.VolumeId, restored.VolumeId, cloned.VolumeId} {
		_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		must(err)
	}
	if list, err = c.ListVolumes(ctx, &csi.ListVolumesRequest{}); err != nil || len(list.Entries) != 0 {
		t.Fatalf("left: %v, %v", list, err)
	}
}
