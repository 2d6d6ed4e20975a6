// Package kubelet drives a CSI plugin over its Unix socket as the sidecars and the kubelet of a
// cluster do: the same calls in the same order, with the same folders.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Kubelet is one node with one plugin.
type Kubelet struct {
	dir    string // pods and staging folders are below it
	conn   *grpc.ClientConn
	ctl    csi.ControllerClient
	node   csi.NodeClient
	Plugin string // its name and version
	NodeID string
}

// Volume is a volume on its way from creation to deletion.
type Volume struct {
	ID      string
	Name    string
	Size    int64 // bytes, as the plugin reported it
	Block   bool
	Staging string // folder that NodeStageVolume works in
	Target  string // what a pod gets: a folder, or a file that is the block device

	context, publish map[string]string
}

// Snapshot of a volume.
type Snapshot struct {
	ID   string
	Size int64
}

// Connect waits until the plugin on a socket is ready; folders are made below dir.
func Connect(ctx context.Context, socket, dir string) (*Kubelet, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, err
	}
	k := &Kubelet{dir: dir, conn: conn, ctl: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn)}
	id := csi.NewIdentityClient(conn)
	err = retry(ctx, func(ctx context.Context) error {
		p, err := id.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && p.Ready != nil && !p.Ready.Value {
			return status.Error(codes.Unavailable, "the plugin is not ready")
		}
		return err
	})
	if err == nil {
		var p *csi.GetPluginInfoResponse
		if p, err = id.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); err == nil {
			k.Plugin = p.Name + " " + p.VendorVersion
		}
	}
	if err == nil {
		var n *csi.NodeGetInfoResponse
		if n, err = k.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); err == nil {
			k.NodeID = n.NodeId
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("CSI plugin: %w", err), conn.Close())
	}
	return k, nil
}

// Close ends the connection.
func (k *Kubelet) Close() error { return k.conn.Close() }

// retry calls again what the sidecars and the kubelet call again. The connection is not made yet at
// first.
func retry(ctx context.Context, f func(context.Context) error) error {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, time.Minute)
		err := f(one)
		cancel()
		switch status.Code(err) {
		case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded:
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-t.C:
		}
	}
}

func capability(block bool) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}
	}
	return c
}

// Create makes a volume, from a snapshot if one is named.
func (k *Kubelet) Create(ctx context.Context, name string, size int64, block bool, snapshot string) (*Volume, error) {
	req := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{capability(block)}}
	if snapshot != "" {
		req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot}}}
	}
	var r *csi.CreateVolumeResponse
	err := retry(ctx, func(ctx context.Context) (err error) { r, err = k.ctl.CreateVolume(ctx, req); return })
	if err != nil {
		return nil, fmt.Errorf("CreateVolume %s: %w", name, err)
	}
	base := filepath.Join(k.dir, name)
	v := &Volume{ID: r.Volume.VolumeId, Name: name, Size: r.Volume.CapacityBytes, Block: block,
		Staging: filepath.Join(base, "globalmount"), Target: filepath.Join(base, "pod", "mount"), context: r.Volume.VolumeContext}
	if block {
		v.Target = filepath.Join(base, "pod", "device")
	}
	return v, nil
}

// Publish brings a volume to this node and into a pod's folder.
func (k *Kubelet) Publish(ctx context.Context, v *Volume) error {
	err := retry(ctx, func(ctx context.Context) error {
		r, err := k.ctl.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.ID, NodeId: k.NodeID,
			VolumeCapability: capability(v.Block), VolumeContext: v.context})
		if err == nil {
			v.publish = r.PublishContext
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("ControllerPublishVolume %s: %w", v.Name, err)
	}
	for _, d := range []string{v.Staging, filepath.Dir(v.Target)} { // the caller makes the one, and the parent of the other
		if err := os.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	err = retry(ctx, func(ctx context.Context) error {
		_, err := k.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.ID, PublishContext: v.publish,
			StagingTargetPath: v.Staging, VolumeCapability: capability(v.Block), VolumeContext: v.context})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodeStageVolume %s: %w", v.Name, err)
	}
	err = retry(ctx, func(ctx context.Context) error {
		_, err := k.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: v.ID, PublishContext: v.publish,
			StagingTargetPath: v.Staging, TargetPath: v.Target, VolumeCapability: capability(v.Block), VolumeContext: v.context})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodePublishVolume %s: %w", v.Name, err)
	}
	return nil
}

// Unpublish undoes Publish, also half of it. All of its calls succeed when there is nothing to
// undo.
func (k *Kubelet) Unpublish(ctx context.Context, v *Volume) error {
	err := retry(ctx, func(ctx context.Context) error {
		_, err := k.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: v.Target})
		return err
	})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("NodeUnpublishVolume %s: %w", v.Name, err)
	}
	err = retry(ctx, func(ctx context.Context) error {
		_, err := k.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.ID, StagingTargetPath: v.Staging})
		return err
	})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("NodeUnstageVolume %s: %w", v.Name, err)
	}
	err = retry(ctx, func(ctx context.Context) error {
		_, err := k.ctl.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.ID, NodeId: k.NodeID})
		return err
	})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("ControllerUnpublishVolume %s: %w", v.Name, err)
	}
	return nil
}

// Expand grows a volume that is in use.
func (k *Kubelet) Expand(ctx context.Context, v *Volume, size int64) error {
	want := &csi.CapacityRange{RequiredBytes: size}
	var r *csi.ControllerExpandVolumeResponse
	err := retry(ctx, func(ctx context.Context) (err error) {
		r, err = k.ctl.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.ID, CapacityRange: want, VolumeCapability: capability(v.Block)})
		return
	})
	if err != nil {
		return fmt.Errorf("ControllerExpandVolume %s: %w", v.Name, err)
	}
	v.Size = r.CapacityBytes
	if !r.NodeExpansionRequired {
		return nil
	}
	err = retry(ctx, func(ctx context.Context) error {
		_, err := k.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: v.ID, VolumePath: v.Target,
			StagingTargetPath: v.Staging, CapacityRange: want, VolumeCapability: capability(v.Block)})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodeExpandVolume %s: %w", v.Name, err)
	}
	return nil
}

// Snapshot makes a snapshot of a volume and waits until it can be used.
func (k *Kubelet) Snapshot(ctx context.Context, v *Volume, name string) (*Snapshot, error) {
	s := &Snapshot{}
	err := retry(ctx, func(ctx context.Context) error {
		r, err := k.ctl.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{SourceVolumeId: v.ID, Name: name})
		if err == nil && !r.Snapshot.ReadyToUse {
			return status.Error(codes.Unavailable, "the snapshot is not ready yet")
		}
		if err == nil {
			s.ID, s.Size = r.Snapshot.SnapshotId, r.Snapshot.SizeBytes
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("CreateSnapshot %s: %w", name, err)
	}
	return s, nil
}

// Delete deletes a volume that is not published.
func (k *Kubelet) Delete(ctx context.Context, v *Volume) error {
	err := retry(ctx, func(ctx context.Context) error {
		_, err := k.ctl.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.ID})
		return err
	})
	if err != nil {
		return fmt.Errorf("DeleteVolume %s: %w", v.Name, err)
	}
	return nil
}

// DeleteSnapshot deletes a snapshot.
func (k *Kubelet) DeleteSnapshot(ctx context.Context, id string) error {
	err := retry(ctx, func(ctx context.Context) error {
		_, err := k.ctl.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		return err
	})
	if err != nil {
		return fmt.Errorf("DeleteSnapshot: %w", err)
	}
	return nil
}
