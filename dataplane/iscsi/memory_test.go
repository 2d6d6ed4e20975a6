package iscsi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// A command that waits for memory can be aborted, and one that has all its data passes it.
func TestWaitingForMemory(t *testing.T) {
	b := serve(t, func(c *Config) {
		c.Limits.Transfer, c.Limits.SessionMemory, c.Limits.FirstBurst = 256<<10, 256<<10, 8192
	}, nil)
	c := b.connect(t)
	const size = 192 << 10
	data := pattern(size, 3)
	first := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, size/512, size)
	c.send(first, nil)
	r2t, _ := c.recv()
	if r2t.Op() != pdu.R2T {
		t.Fatalf("opcode %#x", r2t.Op())
	}
	waits := c.command(opWrite, pdu.Final|pdu.WriteBit, 512, size/512, size)
	c.send(waits, data[:512])
	last := c.command(opWrite, pdu.Final|pdu.WriteBit, 1024, size/512, size)
	c.send(last, data[:1024])
	if r := c.write(4096, data[:4096], 4096); r.status != 0 { // all of it comes with the command
		t.Fatalf("%+v", r)
	}
	h := c.tmf(pdu.TMFAbortTask, waits.ITT(), 0)
	c.send(h, nil)
	if r := c.tmfAnswer(h); r != pdu.TMFComplete {
		t.Fatal(r)
	}
	sent := 0
	c.dataOut(first.ITT(), r2t.TTT(), data, &sent, size)
	var answer, ask pdu.BHS
	for answer == nil || ask == nil {
		r, _ := c.recv()
		switch {
		case r.Op() == pdu.SCSIResp && r.ITT() == first.ITT():
			answer = r
		case r.Op() == pdu.R2T && r.ITT() == last.ITT() && r.U32(pdu.OffBufferOff) == 1024:
			ask = r
		default:
			t.Fatalf("opcode %#x for tag %d", r.Op(), r.ITT())
		}
	}
	sent = 1024
	c.dataOut(last.ITT(), ask.TTT(), data, &sent, size)
	if r := c.result(last.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	b.dev.mu.Lock()
	defer b.dev.mu.Unlock()
	if !bytes.Equal(b.dev.disk[:size], data) || !bytes.Equal(b.dev.disk[1024*512:1024*512+size], data) || bytes.Equal(b.dev.disk[512*512:512*512+512], data[:512]) {
		t.Error("wrong data on the disk")
	}
	// The answer arrives inside the writer's system call; what it was charged with is given back
	// after that.
	for conn := range b.all() {
		var left string
		defer func() {
			if t.Failed() {
				t.Log(left)
			}
		}()
		eventually(t, "an idle session holds no memory", func() bool {
			conn.mu.Lock()
			defer conn.mu.Unlock()
			left = fmt.Sprintf("%+v", conn.memoryState)
			used, _ := b.Memory()
			w, r := &conn.shares[ofWrites], &conn.shares[ofReads]
			return w.held+r.held+conn.unasked+conn.unread == 0 && len(w.waiting)+len(r.waiting) == 0 && used == 0
		})
	}
}

// Data for a command that is not there is consumed and forgotten, however much it is.
func TestStrayData(t *testing.T) {
	b := serve(t, nil, nil)
	for _, digest := range []string{"None", "CRC32C"} {
		c := b.connect(t, "HeaderDigest", digest, "DataDigest", digest)
		for _, n := range []int{1, 511, 200001} {
			c.send(c.dataPDU(0x7777, 5, 0, 0, true), make([]byte, n))
		}
		c.ping()
	}
}

// Text over several PDUs in the full-feature phase, and too much of it.
func TestLongText(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	h := c.request(pdu.TextReq, pdu.Continue, true)
	c.send(h, []byte("SendTar"))
	r, data := c.recv()
	if r.Op() != pdu.TextResp || len(data) != 0 || r.Flags() != 0 || r.TTT() == pdu.Reserved {
		t.Fatalf("% x %q", []byte(r), data)
	}
	next := c.request(pdu.TextReq, pdu.Final, true)
	next.SetITT(h.ITT())
	next.SetTTT(r.TTT())
	c.send(next, []byte("gets=\x00"))
	if r, data = c.recv(); r.Flags() != pdu.Final || !bytes.HasPrefix(data, []byte("TargetName="+testTarget)) {
		t.Fatalf("% x %q", []byte(r), data)
	}
	part := bytes.Repeat([]byte("A=1\x00"), 8192)
	for i := 0; ; i++ {
		c.send(c.request(pdu.TextReq, pdu.Continue, true), part)
		if r, _ = c.recv(); r.Op() == pdu.Reject {
			break
		}
		if i > 4 {
			t.Fatal("endless text")
		}
	}
	c.ping()
}

func TestConfigIsRefusedByField(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"target name":     func(c *Config) { c.TargetName = "Pair" },
		"tag":             func(c *Config) { c.Tag = 0 },
		"window":          func(c *Config) { c.Limits.Window = 100000 },
		"burst":           func(c *Config) { c.Limits.MaxBurst = 1024 },
		"receive segment": func(c *Config) { c.Limits.RecvSegment = 512 },
		"memory":          func(c *Config) { c.Limits.SessionMemory = 1 << 20 },
	} {
		cfg := Config{TargetName: testTarget, Tag: 1}
		change(&cfg)
		if s, err := New(cfg, newMemory(512), hostList{}); err == nil {
			_ = s.Shutdown(context.Background())
			t.Errorf("bad %s accepted", name)
		}
	}
}

func TestServeEnds(t *testing.T) {
	s, err := New(Config{TargetName: testTarget, Tag: 1}, newMemory(512), hostList{})
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Serve(ctx, listen()); err != nil {
		t.Error("ended context:", err)
	}
	broken := listen()
	_ = broken.Close()
	if err := s.Serve(context.Background(), broken); !errors.Is(err, net.ErrClosed) {
		t.Error("broken listener:", err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := s.Serve(context.Background(), listen()); err != nil {
		t.Error("after Shutdown:", err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error("second Shutdown:", err)
	}
}
