// Package server serves the CSI services on a Unix socket, with logging, metrics and limits.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/identity"
)

// Services of a plugin; all but Identity may be nil.
type Services struct {
	Identity        csi.IdentityServer
	Controller      csi.ControllerServer
	GroupController csi.GroupControllerServer
	Node            csi.NodeServer
}

// Server is a listening plugin.
type Server struct {
	grpc *grpc.Server
	l    net.Listener
	path string
	log  *slog.Logger
}

// Limits of the socket.
const (
	maxMessage    = 4 << 20 // bytes
	shutdownLimit = 20 * time.Second
)

// ParseEndpoint accepts unix:///path, unix:/path and an absolute path.
func ParseEndpoint(s string) (path string, err error) {
	path = s
	if rest, ok := strings.CutPrefix(s, "unix:"); ok {
		path = rest
		if rest, ok := strings.CutPrefix(rest, "//"); ok {
			path = rest
		}
	}
	if !filepath.IsAbs(path) || len(path) > 107 {
		return "", fmt.Errorf("endpoint %q must be unix:///path with an absolute path of at most 107 bytes", s)
	}
	return filepath.Clean(path), nil
}

// Listen creates the socket, and replaces one that an earlier process left. It fails if another
// plugin still serves it.
func Listen(endpoint string, s Services, reg prometheus.Registerer, log *slog.Logger) (*Server, error) {
	path, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("endpoint %s: another process serves this socket: stop it, or set another endpoint", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil { // the kubelet does not create the folder
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil { // every client that can connect can mount
		return nil, errors.Join(fmt.Errorf("endpoint: %w", err), l.Close())
	}
	ops, err := newOperations(reg)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.ChainUnaryInterceptor(ops.observe, logged(log), recovered(log)))
	csi.RegisterIdentityServer(g, s.Identity)
	if s.Controller != nil {
		csi.RegisterControllerServer(g, s.Controller)
	}
	if s.GroupController != nil {
		csi.RegisterGroupControllerServer(g, s.GroupController)
	}
	if s.Node != nil {
		csi.RegisterNodeServer(g, s.Node)
	}
	return &Server{grpc: g, l: l, path: path, log: log}, nil
}

// Serve serves until the context ends; then running calls may complete for up to shutdownLimit.
func (s *Server) Serve(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.grpc.Serve(s.l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("csi server: %w", err)
	case <-ctx.Done():
	}
	force := time.AfterFunc(shutdownLimit, s.grpc.Stop)
	defer force.Stop()
	s.grpc.GracefulStop()
	<-ended
	return nil
}

// logged logs failed calls, and all calls at debug level. It strips fields that the specification
// marks as secret.
func logged(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		start := time.Now()
		r, err := next(ctx, req)
		attrs := []any{"method", method(info), "took", time.Since(start).Round(time.Microsecond)}
		switch {
		case err != nil:
			log.Error("call failed", append(attrs, "code", status.Code(err).String(), "err", status.Convert(err).Message(), "request", protosanitizer.StripSecrets(req).String())...)
		case log.Enabled(ctx, slog.LevelDebug):
			log.Debug("call", append(attrs, "request", protosanitizer.StripSecrets(req).String(), "response", protosanitizer.StripSecrets(r).String())...)
		}
		return r, err
	}
}

// recovered converts a panic to an error, so that other calls continue.
func recovered(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (r any, err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("panic", "method", method(info), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				err = status.Errorf(codes.Internal, "%s panicked: %v", method(info), p)
			}
		}()
		return next(ctx, req)
	}
}

func method(info *grpc.UnaryServerInfo) string { return info.FullMethod }

// operations is the histogram of CSI sidecars, with the same name.
type operations struct{ h *prometheus.HistogramVec }

func newOperations(reg prometheus.Registerer) (*operations, error) {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "csi_plugin", Name: "operations_seconds",
		Help:    "Container Storage Interface operation duration with gRPC error code status total",
		Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}},
		[]string{"driver_name", "method_name", "grpc_status_code"})
	return &operations{h}, reg.Register(h)
}

func (o *operations) observe(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	start := time.Now()
	r, err := next(ctx, req)
	o.h.WithLabelValues(identity.DriverName, method(info), status.Code(err).String()).Observe(time.Since(start).Seconds())
	return r, err
}
