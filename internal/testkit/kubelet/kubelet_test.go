package kubelet

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// plugin answers on a socket and notes what it is asked; the real plugin is driven by the demo's
// own tests.
type plugin struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	mu    sync.Mutex
	calls []string
	fail  map[string][]error // by method: what the next calls end with
}

func (p *plugin) intercept(ctx context.Context, req any, i *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	name := i.FullMethod[strings.LastIndexByte(i.FullMethod, '/')+1:]
	p.mu.Lock()
	p.calls = append(p.calls, name)
	var err error
	if list := p.fail[name]; len(list) > 0 {
		err, p.fail[name] = list[0], list[1:]
	}
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func (p *plugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
func (p *plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "test", VendorVersion: "1"}, nil
}
func (p *plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}
func (p *plugin) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "id-" + req.Name, CapacityBytes: req.CapacityRange.RequiredBytes}}, nil
}
func (p *plugin) ControllerPublishVolume(context.Context, *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"k": "v"}}, nil
}
func (p *plugin) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if _, err := os.Stat(req.StagingTargetPath); err != nil || req.PublishContext["k"] != "v" {
		return nil, status.Error(codes.InvalidArgument, "no staging folder or publish context")
	}
	return &csi.NodeStageVolumeResponse{}, nil
}
func (p *plugin) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if _, err := os.Stat(filepath.Dir(req.TargetPath)); err != nil {
		return nil, status.Error(codes.InvalidArgument, "no parent of the target path")
	}
	if _, err := os.Stat(req.TargetPath); !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.InvalidArgument, "the target path is the plugin's to make")
	}
	return &csi.NodePublishVolumeResponse{}, nil
}
func (p *plugin) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
func (p *plugin) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, nil
}
func (p *plugin) ControllerUnpublishVolume(context.Context, *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (p *plugin) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.calls
	p.calls = nil
	return c
}

func connect(t *testing.T) (*plugin, *Kubelet, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{fail: map[string][]error{"Probe": {status.Error(codes.Unavailable, "starting")}}}
	s := grpc.NewServer(grpc.UnaryInterceptor(p.intercept))
	csi.RegisterIdentityServer(s, p)
	csi.RegisterControllerServer(s, p)
	csi.RegisterNodeServer(s, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	k, err := Connect(ctx, l.Addr().String(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	if got := p.take(); !slices.Equal(got, []string{"Probe", "Probe", "GetPluginInfo", "NodeGetInfo"}) || k.NodeID != "node" {
		t.Errorf("connect: %v, node %q", got, k.NodeID)
	}
	return p, k, ctx
}

func TestOrderOfCalls(t *testing.T) {
	p, k, ctx := connect(t)
	for _, block := range []bool{false, true} {
		v, err := k.Create(ctx, map[bool]string{false: "files", true: "block"}[block], 1<<30, block, "")
		if err != nil {
			t.Fatal(err)
		}
		// What is busy or away for a moment is asked again.
		p.mu.Lock()
		p.fail["NodeStageVolume"] = []error{status.Error(codes.Aborted, "busy")}
		p.mu.Unlock()
		if err := k.Publish(ctx, v); err != nil {
			t.Fatal(err)
		}
		if err := k.Unpublish(ctx, v); err != nil {
			t.Fatal(err)
		}
		want := []string{"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodeStageVolume", "NodePublishVolume",
			"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"}
		if got := p.take(); !slices.Equal(got, want) {
			t.Errorf("calls %v, want %v", got, want)
		}
	}
}

func TestErrorsEndTheStory(t *testing.T) {
	p, k, ctx := connect(t)
	p.fail["CreateVolume"] = []error{status.Error(codes.ResourceExhausted, "full")}
	if _, err := k.Create(ctx, "x", 1, false, ""); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "CreateVolume x") {
		t.Errorf("create: %v", err)
	}
	// A volume that is gone has nothing to undo; any other refusal is reported, and what depends on
	// it is not tried.
	p.take()
	v := &Volume{ID: "x", Name: "x"}
	p.fail["NodeUnpublishVolume"] = []error{status.Error(codes.NotFound, "gone")}
	p.fail["NodeUnstageVolume"] = []error{status.Error(codes.Internal, "busy mount")}
	if err := k.Unpublish(ctx, v); status.Code(err) != codes.Internal {
		t.Errorf("unpublish: %v", err)
	}
	if got := p.take(); slices.Contains(got, "ControllerUnpublishVolume") {
		t.Errorf("fenced although still staged: %v", got)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	p.mu.Lock()
	p.fail["CreateVolume"] = slices.Repeat([]error{status.Error(codes.Unavailable, "away")}, 1000)
	p.mu.Unlock()
	if _, err := k.Create(short, "x", 1, false, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("create while the plugin is away: %v", err)
	}
}
