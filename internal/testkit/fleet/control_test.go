package fleet

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/pki"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
)

// The stand-in is the pair whose address is called, answers as one does, and falls silent.
func TestStandInForAPair(t *testing.T) {
	a, _, err := pki.New("scale", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pairs{}
	for i, pair := range []string{"p0", "p1"} {
		issued, err := a.Issue(pki.TargetURI("c", pair, "a"), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(issued.Cert, issued.Key)
		if err != nil {
			t.Fatal(err)
		}
		p.Add(netip.MustParseAddr("127.0.0."+strconv.Itoa(1+i)), "c", pair, "a", c, 1<<40)
	}
	number, err := freeport.On("127.0.0.1", "127.0.0.2")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(number)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, port) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	dial := func(host string) targetv1.TargetServiceClient {
		conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(host, port), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return targetv1.NewTargetServiceClient(conn)
	}
	one, two := dial("127.0.0.1"), dial("127.0.0.2")
	wait := grpc.WaitForReady(true)
	for range 2 {
		if _, err := one.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: "01234567-x", SizeBytes: 1 << 30}, wait); err != nil {
			t.Fatal(err)
		}
	}
	m, err := one.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: "01234567-x", HostIqn: "h"})
	if err != nil || m.TargetIqn != "iqn.2026-11.storage.gemel:c.p0" {
		t.Errorf("%v, %v", m, err)
	}
	if _, err := one.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: "01234567-x", HostIqn: "i", Exclusive: true}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if _, err := two.GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: "01234567-x"}, wait); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	p.Grow(1 << 20)
	if s, err := one.GetStatus(ctx, &targetv1.GetStatusRequest{}); err != nil || s.FreeBytes != 1<<40-1<<20 || len(s.OwnedLuns) != 1 || s.Pair != "p0" {
		t.Errorf("%v, %v", s, err)
	}
	end := p.Silence("p0")
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := one.GetStatus(short, &targetv1.GetStatusRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if _, err := two.GetStatus(ctx, &targetv1.GetStatusRequest{}); err != nil {
		t.Error(err)
	}
	end()
	if _, err := one.GetStatus(ctx, &targetv1.GetStatusRequest{}); err != nil {
		t.Error(err)
	}
}
