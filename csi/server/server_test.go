package server

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/identity"
)

func TestParseEndpointAcceptsUnixSockets(t *testing.T) {
	for in, want := range map[string]string{"unix:///a/b": "/a/b", "unix:/a/b": "/a/b", "/a/b": "/a/b",
		"tcp://1.2.3.4:5": "", "unix:a": "", "": "", "unix:///" + strings.Repeat("x", 107): ""} {
		got, err := ParseEndpoint(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

type broken struct {
	csi.UnimplementedControllerServer
}

func (broken) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	panic("on purpose")
}

func TestServeHidesSecretsAndCountsCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var logs bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logs, nil))
	reg := prometheus.NewRegistry()
	s, err := Listen("unix://"+path, Services{Identity: &identity.Server{Version: "v"}, Controller: broken{}}, reg, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, Services{Identity: &identity.Server{}}, prometheus.NewRegistry(), log); err == nil {
		t.Fatal("a socket in use was replaced")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	call, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	_, err = csi.NewControllerClient(conn).DeleteVolume(call, &csi.DeleteVolumeRequest{VolumeId: "v1", Secrets: map[string]string{"k": "sesame"}})
	if status.Code(err) != codes.Internal {
		t.Fatalf("panic became %v", err)
	}
	if i, err := csi.NewIdentityClient(conn).GetPluginInfo(call, &csi.GetPluginInfoRequest{}); err != nil || i.Name != "csi.gemel.storage" {
		t.Fatalf("after a panic: %v, %v", i, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if out := logs.String(); strings.Contains(out, "sesame") || !strings.Contains(out, "v1") {
		t.Fatalf("log: %s", out)
	}
	m, err := reg.Gather()
	if err != nil || len(m) != 1 || m[0].GetName() != "csi_plugin_operations_seconds" || len(m[0].Metric) != 2 {
		t.Fatalf("metrics %v, %v", m, err)
	}
}

type grouped struct {
	csi.UnimplementedGroupControllerServer
}

func (grouped) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{}, nil
}

// A backend without group snapshots has no such service.
func TestGroupControllerIsServedIfThereIsOne(t *testing.T) {
	for want, service := range map[codes.Code]csi.GroupControllerServer{codes.OK: grouped{}, codes.Unimplemented: nil} {
		path := filepath.Join(t.TempDir(), "s")
		s, err := Listen(path, Services{Identity: &identity.Server{}, GroupController: service}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx) }()
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		call, stop := context.WithTimeout(ctx, 10*time.Second)
		if _, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(call, &csi.GroupControllerGetCapabilitiesRequest{}); status.Code(err) != want {
			t.Errorf("%v, not %v", err, want)
		}
		stop()
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
