package register

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// kubelet asks a socket as the kubelet does.
func kubelet(t *testing.T, sock string, registered bool) *registerapi.PluginInfo {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+sock, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := registerapi.NewRegistrationClient(conn)
	info, err := c.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: registered, Error: "no such driver"}); err != nil {
		t.Fatal(err)
	}
	return info
}

func TestRegistration(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg-") // a socket's address has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := Config{Folder: dir, Driver: "csi.example", Endpoint: "/var/lib/kubelet/plugins/csi.example/csi.sock", Log: slog.New(slog.DiscardHandler)}
	sock := filepath.Join(dir, "csi.example-reg.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c) }()
	if info := kubelet(t, sock, true); info.Name != c.Driver || info.Endpoint != c.Endpoint || info.Type != registerapi.CSIPlugin {
		t.Fatalf("%v", info)
	}
	if err := os.Remove(sock); err != nil {
		t.Fatal(err)
	}
	kubelet(t, sock, true) // made again
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(sock); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the socket stays: %v", err)
	}
}

func TestRefusedRegistrationEndsIt(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	done := make(chan error, 1)
	go func() {
		done <- Run(t.Context(), Config{Folder: dir, Driver: "csi.example", Log: slog.New(slog.DiscardHandler)})
	}()
	kubelet(t, filepath.Join(dir, "csi.example-reg.sock"), false)
	if err := <-done; !errors.Is(err, ErrRegistration) || !strings.Contains(err.Error(), "no such driver") {
		t.Fatal(err)
	}
}

func TestFolderIsNamed(t *testing.T) {
	if err := Run(t.Context(), Config{Folder: "/does/not/exist"}); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Fatal(err)
	}
}
