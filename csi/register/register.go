// Package register makes the node plugin known to the kubelet: the kubelet watches a folder for
// sockets and asks each what it is (k8s.io/kubelet pluginregistration v1). It is what
// node-driver-registrar does beside a plugin, without a second container. A kubelet that restarts
// finds the socket and asks again.
package register

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Config of a registration.
type Config struct {
	Folder   string // the kubelet's plugins_registry
	Driver   string // name of the CSI driver
	Endpoint string // path of the plugin's socket as the kubelet sees it
	Log      *slog.Logger
}

// watchEvery is how often the socket is looked for: somebody who empties the folder would make the
// driver unknown for good.
const watchEvery = 5 * time.Second

// stopWithin bounds how long an answer under way may take when the socket goes: the kubelet, whose
// refusal ends the plugin, gets its answer first.
const stopWithin = time.Second

// ErrRegistration: the kubelet refused the plugin. Its text is in the log.
var ErrRegistration = errors.New("the kubelet refused the registration")

type server struct {
	registerapi.UnimplementedRegistrationServer
	c    Config
	fail chan error
}

// GetInfo says what the plugin is.
func (s *server) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: s.c.Driver, Endpoint: s.c.Endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus takes the kubelet's decision. After a refusal the process ends, so that
// it is seen and tried again.
func (s *server) NotifyRegistrationStatus(_ context.Context, q *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if q.PluginRegistered {
		s.c.Log.Info("registered with the kubelet", "driver", s.c.Driver)
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	select {
	case s.fail <- fmt.Errorf("%w: %s", ErrRegistration, q.Error):
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// Run offers the plugin until the context ends, then takes the socket away: the kubelet unregisters
// it.
func Run(ctx context.Context, c Config) error {
	if st, err := os.Stat(c.Folder); err != nil || !st.IsDir() {
		return fmt.Errorf("kubelet registration: %s is no folder: it is the kubelet's plugins_registry (%w)", c.Folder, err)
	}
	sock := filepath.Join(c.Folder, c.Driver+"-reg.sock")
	s := &server{c: c, fail: make(chan error, 1)}
	for {
		again, err := s.serve(ctx, sock)
		if err != nil || !again {
			return err
		}
		c.Log.Warn("the registration socket has gone: made again", "socket", sock)
	}
}

// serve until the context ends, the kubelet refuses, or the socket is gone (again).
func (s *server) serve(ctx context.Context, sock string) (again bool, err error) {
	if err := os.Remove(sock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		return false, fmt.Errorf("kubelet registration: %w", err)
	}
	g := grpc.NewServer()
	registerapi.RegisterRegistrationServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	defer func() {
		bound := time.AfterFunc(stopWithin, g.Stop)
		defer bound.Stop()
		g.GracefulStop()
		<-done
	}()
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-s.fail:
			return false, err
		case <-t.C:
			if _, err := os.Stat(sock); errors.Is(err, fs.ErrNotExist) {
				return true, nil
			}
		}
	}
}
