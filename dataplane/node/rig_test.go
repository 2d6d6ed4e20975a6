package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// testPair is a pair whose two nodes run in the test's process, on loopback ports.
type testPair struct {
	t     *testing.T
	ctx   context.Context
	cfg   [2]Config
	nodes [2]*Node
	ends  [2]func() error
	runs  [2]func() error // waits until a node has ended without a stop
}

func newTestPair(t *testing.T) *testPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &testPair{t: t, ctx: ctx}
	dir := t.TempDir()
	addr := func() string {
		a, err := freeport.Addr("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	portals := [2]string{addr(), addr()}
	linkAddr := addr()
	var log io.Writer = io.Discard
	if testing.Verbose() {
		log = os.Stderr
	}
	for i, name := range harness.Names {
		p.cfg[i] = Config{Cluster: "test", Pair: "p0", Node: name, StateDir: filepath.Join(dir, name), Arbiter: "file:" + filepath.Join(dir, "record"),
			ISCSIListen: []string{portals[i]}, Portals: []string{"a=" + portals[0], "b=" + portals[1]}, ControlListen: addr(), MetricsListen: addr(), CheckpointIdle: Duration(300 * time.Millisecond), FullCopies: true,
			Logger: slog.New(slog.NewTextHandler(log, nil)).With("node", name)}
	}
	p.cfg[0].LinkListen, p.cfg[1].LinkPeer = linkAddr, linkAddr
	t.Cleanup(func() {
		for i := range p.nodes {
			if err := p.stop(i); err != nil {
				t.Errorf("node %s: %v", harness.Names[i], err)
			}
		}
	})
	return p
}

// start runs one node.
func (p *testPair) start(i int) {
	p.t.Helper()
	n, err := New(p.cfg[i])
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	p.nodes[i] = n
	p.runs[i] = sync.OnceValue(func() error { defer cancel(); return <-done })
	p.ends[i] = func() error { cancel(); return p.runs[i]() }
}

// stop ends one node in an orderly way.
func (p *testPair) stop(i int) error {
	if p.ends[i] == nil {
		return nil
	}
	defer func() { p.nodes[i], p.ends[i] = nil, nil }()
	return p.ends[i]()
}

// leaves waits until a node has ended without a stop, and says why.
func (p *testPair) leaves(i int, why string) {
	p.t.Helper()
	err := p.runs[i]()
	if !errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), why) {
		p.t.Fatalf("node %s ended with %v, want it to leave because of %q", harness.Names[i], err, why)
	}
	p.nodes[i], p.ends[i] = nil, nil
}

func (p *testPair) startBoth() *testPair {
	p.t.Helper()
	p.start(0)
	p.start(1)
	p.inSync()
	return p
}

func (p *testPair) inSync() {
	p.t.Helper()
	p.until("both nodes serve", func() bool {
		return p.nodes[0].View().Phase == pair.Paired && p.nodes[0].View().Serving && p.nodes[1].View().Phase == pair.Paired && p.nodes[1].View().Serving
	})
}

// until polls a condition.
func (p *testPair) until(what string, ok func() bool) {
	p.t.Helper()
	if err := harness.Wait(p.ctx, what, func() (bool, string) {
		saw := ""
		for _, n := range p.nodes {
			if n != nil {
				v := n.View()
				saw += fmt.Sprintf("%v: %v %s (serving %v, linked %v); ", n.self, v.Phase, v.Reason, v.Serving, v.Linked)
			}
		}
		return ok(), saw
	}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testPair) client(i int) targetv1.TargetServiceClient {
	p.t.Helper()
	c, err := grpc.NewClient(p.cfg[i].ControlListen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	return targetv1.NewTargetServiceClient(c)
}

const testHost = "iqn.2026-11.storage.gemel.test:host1"

// lun makes a LUN, owned by a node, mapped to the test's host.
func (p *testPair) lun(size uint64, owner string) (string, *targetv1.Mapping) {
	p.t.Helper()
	id := uuid.NewString()
	c := p.client(0)
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: size, PreferredNode: owner}); err != nil {
		p.t.Fatal(err)
	}
	m, err := c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost})
	if err != nil {
		p.t.Fatal(err)
	}
	return id, m
}

func (p *testPair) device(m *targetv1.Mapping, change ...func(*initiator.Config)) *initiator.Device {
	p.t.Helper()
	cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, x := range m.Portals {
		cfg.Portals = append(cfg.Portals, x.Address)
	}
	for _, f := range change {
		f(&cfg)
	}
	d, err := initiator.Open(p.ctx, cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = d.Close(ctx)
	})
	return d
}

// image is the file of a LUN on one node.
func (p *testPair) image(i int, id string) string { return p.object(i, "luns", id) }

func (p *testPair) object(i int, kind, id string) string {
	return filepath.Join(p.cfg[i].StateDir, "volumes", "default", kind, id+".img")
}

func (p *testPair) bytes(i int, id string) []byte {
	p.t.Helper()
	return p.read(p.image(i, id))
}

func (p *testPair) read(path string) []byte {
	p.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

func (p *testPair) get(i int, path string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.ctx, http.MethodGet, "http://"+p.cfg[i].MetricsListen+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	var r *http.Response
	if err := harness.Wait(p.ctx, "the node listens", func() (bool, string) {
		r, err = http.DefaultClient.Do(req)
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		p.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// logBuffer keeps a node's log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// keepLog keeps a node's log from its next start on.
func (p *testPair) keepLog(i int) *logBuffer {
	l := new(logBuffer)
	p.cfg[i].Logger = slog.New(slog.NewTextHandler(l, nil))
	return l
}
