package scsi_test

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/single"
	"github.com/gemel-storage/gemel/dataplane/store"
)

const (
	testUUID   = "3b2c6d2e-54f4-4c8e-9a51-6f0f5f2f1a10"
	testSize   = 24 << 20
	testBlocks = testSize / 512
)

// gate is in front of a medium: while it is shut, operations wait as those behind a range lock do.
type gate struct {
	scsi.Medium
	mu     sync.Mutex
	shut   bool
	held   []*scsi.Op
	access scsi.Access
}

func (g *gate) Submit(op *scsi.Op) bool {
	g.mu.Lock()
	if g.shut {
		g.held = append(g.held, op)
		g.mu.Unlock()
		return false
	}
	g.mu.Unlock()
	return g.Medium.Submit(op)
}

func (g *gate) Abort(op *scsi.Op) {
	g.mu.Lock()
	for i, o := range g.held {
		if o == op {
			g.held = append(g.held[:i], g.held[i+1:]...)
			g.mu.Unlock()
			op.Result = scsi.Aborted
			op.Done(op)
			return
		}
	}
	g.mu.Unlock()
	g.Medium.Abort(op)
}

func (g *gate) Access() scsi.Access {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.access
}

func (g *gate) set(shut bool, access scsi.Access) {
	g.mu.Lock()
	g.shut, g.access = shut, access
	held := g.held
	if !shut {
		g.held = nil
	}
	g.mu.Unlock()
	if shut {
		return
	}
	for _, op := range held {
		if g.Medium.Submit(op) {
			op.Done(op)
		}
	}
}

// rig is two target ports on one unit over a real file.
type rig struct {
	t       testing.TB
	cluster *single.Cluster
	servers [2]*scsi.Server
	unit    *scsi.Unit
	medium  *single.Medium
	gate    *gate
	file    *store.File
}

func newRig(t testing.TB, change func(*scsi.UnitConfig)) *rig {
	t.Helper()
	st, err := store.Open(t.TempDir(), store.Identity{Cluster: "c", Pair: "p", Node: "a"}, store.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Default().CreateLUN(testUUID, testSize, store.NoBirth); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cluster: &single.Cluster{}}
	if r.file, err = st.Default().OpenLUN(testUUID); err != nil {
		t.Fatal(err)
	}
	if r.medium, err = single.NewMedium(r.file, nil); err != nil {
		t.Fatal(err)
	}
	r.gate = &gate{Medium: r.medium}
	cfg := scsi.UnitConfig{UUID: testUUID, SizeBytes: testSize, Thin: true, WriteCache: true}
	if change != nil {
		change(&cfg)
	}
	if r.unit, err = scsi.NewUnit(cfg, r.gate); err != nil {
		t.Fatal(err)
	}
	r.medium.Bind(r.unit)
	r.cluster.AddUnit(r.unit)
	for i := range r.servers {
		r.servers[i] = r.cluster.AddServer(scsi.Config{TargetName: "iqn.2024-01.storage.gemel:test"})
	}
	t.Cleanup(func() {
		r.gate.set(false, scsi.AccessReady)
		r.medium.Close()
		r.file.Close()
		st.Close()
	})
	return r
}

// host is a session: a nexus of one initiator through one port.
type host struct {
	*rig
	srv   *scsi.Server
	nexus *scsi.Nexus
}

// login opens a nexus and takes its power-on attention.
func (r *rig) login(name string, port int) *host {
	r.t.Helper()
	h := r.loginRaw(name, port)
	if s := h.do(cdb(0x00, 6), nil, 0).sense(); s != 0x062900 {
		r.t.Fatalf("a new nexus was told %06x", s)
	}
	return h
}

func (r *rig) loginRaw(name string, port int) *host {
	id := scsi.NexusID{Initiator: name, ISID: [6]byte{0x80, 1, 2, 3, 4, 5}, Port: uint16(port)}
	return &host{r, r.servers[port-1], r.servers[port-1].OpenNexus(id)}
}

// command is a task on its way.
type command struct {
	scsi.Task
	done chan struct{}
}

func bootTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// start submits a command: out is sent, in bytes are expected.
func (h *host) start(c []byte, out []byte, in int) *command {
	k := &command{done: make(chan struct{})}
	copy(k.CDB[:], c)
	k.Nexus, k.DataOut, k.Read, k.Write = h.nexus, out, in > 0, out != nil
	k.Expected = max(in, len(out))
	k.Arrived = bootTime()
	k.Alloc = func(n int) []byte { return bytes.Repeat([]byte{0xee}, n) }
	k.Done = func(*scsi.Task) { close(k.done) }
	if h.srv.Submit(&k.Task) {
		close(k.done)
	}
	return k
}

func (k *command) wait(t testing.TB) *command {
	t.Helper()
	select {
	case <-k.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the command hangs")
	}
	return k
}

func (k *command) running() bool {
	select {
	case <-k.done:
		return false
	default:
		return true
	}
}

func (h *host) do(c []byte, out []byte, in int) *command {
	h.t.Helper()
	return h.start(c, out, in).wait(h.t)
}

// good is do for what has to succeed; it returns the data.
func (h *host) good(c []byte, out []byte, in int) []byte {
	h.t.Helper()
	k := h.do(c, out, in)
	if k.Status != scsi.StatusGood || k.Aborted {
		h.t.Fatalf("% x: status %02x, sense %06x, aborted %v", c, k.Status, k.sense(), k.Aborted)
	}
	return k.DataIn
}

// fails wants a sense, as key, ASC and ASCQ in one number.
func (h *host) fails(want uint32, c []byte, out []byte, in int) {
	h.t.Helper()
	k := h.do(c, out, in)
	if got := k.sense(); k.Status != scsi.StatusCheckCondition || got != want {
		h.t.Errorf("% x: status %02x, sense %06x, want %06x", c, k.Status, got, want)
	}
}

func (h *host) conflicts(c []byte, out []byte, in int) {
	h.t.Helper()
	if k := h.do(c, out, in); k.Status != scsi.StatusReservationConflict {
		h.t.Errorf("% x: status %02x, want a reservation conflict", c, k.Status)
	}
}

func (k *command) sense() uint32 {
	s := k.Sense
	switch {
	case len(s) == 0:
		return 0
	case s[0]&0x7f >= 0x72:
		return uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
	}
	return uint32(s[2]&0xf)<<16 | uint32(s[12])<<8 | uint32(s[13])
}

// cdb makes a CDB: operation code, size, then pairs of offset and value.
func cdb(op byte, size int, at ...int) []byte {
	c := make([]byte, size)
	c[0] = op
	for i := 0; i+1 < len(at); i += 2 {
		c[at[i]] = byte(at[i+1])
	}
	return c
}

// cdb16 makes a 16-byte block command.
func cdb16(op, flags byte, lba uint64, blocks uint32) []byte {
	c := cdb(op, 16, 1, int(flags))
	binary.BigEndian.PutUint64(c[2:], lba)
	binary.BigEndian.PutUint32(c[10:], blocks)
	return c
}

func cdb10(op, flags byte, lba uint32, blocks uint16) []byte {
	c := cdb(op, 10, 1, int(flags))
	binary.BigEndian.PutUint32(c[2:], lba)
	binary.BigEndian.PutUint16(c[7:], blocks)
	return c
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i/512) + byte(i%251)
	}
	return b
}
