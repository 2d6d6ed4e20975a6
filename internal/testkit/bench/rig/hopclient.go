package rig

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// StartHops runs both processes and connects to them.
func (r *Rig) StartHops(ctx context.Context, tls bool) (s *Served, stop func(), err error) {
	name, pki, flags := "hops", "", "two bare processes, the same frames"
	if tls {
		name, flags = "hops_tls", flags+", mutual TLS between them"
		pki = r.Lab.Path("pki-hops")
		if _, _, err := harness.PKI(pki); err != nil {
			return nil, nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	exe := r.Lab.Path("bin", "bench")
	if err := os.Symlink(self, exe); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, nil, err
	}
	var procs [2]*process
	var addr [2]string
	stop = func() {
		for _, p := range procs {
			if p != nil {
				p.stop()
			}
		}
	}
	for _, i := range []int{1, 0} { // b first: a connects to it
		if addr[i], err = freeport.Addr("127.0.0.1"); err == nil {
			next := ""
			if i == 0 {
				next = addr[1]
			}
			procs[i], err = startProcess("env", hopListenEnv+"="+addr[i], hopNextEnv+"="+next, hopPKIEnv+"="+pki, exe)
		}
		if err == nil && i == 1 {
			err = procs[i].await(ctx, "hop b", listening(addr[i]))
		}
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("%s: %w", filepath.Base(exe), err)
		}
	}
	d := &hopDevice{pending: map[uint64]*initiator.IO{}, done: make(chan struct{})}
	err = procs[0].await(ctx, "hop a", func() (err error) {
		d.c, err = net.Dial("tcp", addr[0])
		return err
	})
	if err != nil {
		stop()
		return nil, nil, err
	}
	go d.receive()
	return &Served{Device: d, Name: name, Flags: flags, Procs: []load.Process{{Name: "a", PID: procs[0].pid()}, {Name: "b", PID: procs[1].pid()}}}, stop, nil
}

// hopDevice is the client: a device that keeps nothing.
type hopDevice struct {
	c    net.Conn
	done chan struct{}

	mu      sync.Mutex
	tag     uint64
	pending map[uint64]*initiator.IO
	out     []byte // gathered while answers are being taken in
	taking  bool
	err     error
}

// Submit sends a read or a write; requests that are submitted while answers are taken in go out
// together.
func (d *hopDevice) Submit(io *initiator.IO) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	write := io.Op == initiator.OpWrite
	if !write && io.Op != initiator.OpRead {
		return fmt.Errorf("hop: operation %d", io.Op)
	}
	d.tag++
	io.Err = nil
	d.pending[d.tag] = io
	var h [hopHeader]byte
	putHop(h[:], d.tag, write, len(io.Buf))
	d.out = append(d.out, h[:]...)
	if write {
		d.out = append(d.out, io.Buf...)
	}
	if d.taking {
		return nil
	}
	return d.flush()
}

func (d *hopDevice) flush() error {
	if len(d.out) == 0 {
		return nil
	}
	_, err := d.c.Write(d.out)
	d.out = d.out[:0]
	return err
}

func (d *hopDevice) receive() {
	defer close(d.done)
	r := bufio.NewReaderSize(d.c, hopBuffer)
	var h [hopHeader]byte
	for {
		_, err := io.ReadFull(r, h[:])
		if err != nil {
			d.fail(err)
			return
		}
		write, _ := hopFields(h[:])
		d.mu.Lock()
		tag := binary.BigEndian.Uint64(h[:])
		req := d.pending[tag]
		delete(d.pending, tag)
		d.taking = true
		d.mu.Unlock()
		if req == nil {
			d.fail(fmt.Errorf("hop: an answer to request %d, which was not made", tag))
			return
		}
		if !write {
			if _, err = io.ReadFull(r, req.Buf); err != nil {
				req.Err = err
			}
		}
		req.Done(req)
		if r.Buffered() < hopHeader {
			d.mu.Lock()
			d.taking = false
			err := d.flush()
			d.mu.Unlock()
			if err != nil {
				d.fail(err)
				return
			}
		}
	}
}

// fail ends every request.
func (d *hopDevice) fail(err error) {
	d.mu.Lock()
	d.err, d.taking = err, false
	left := d.pending
	d.pending = map[uint64]*initiator.IO{}
	d.mu.Unlock()
	for _, io := range left {
		io.Err = err
		io.Done(io)
	}
}

// Size is that of a LUN that is measured.
func (d *hopDevice) Size() int64 { return 512 << 20 }

func (d *hopDevice) Flush(context.Context) error { return nil }

func (d *hopDevice) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return d.wait(ctx, &initiator.IO{Op: initiator.OpRead, Off: off, Buf: p})
}

func (d *hopDevice) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return d.wait(ctx, &initiator.IO{Op: initiator.OpWrite, Off: off, Buf: p})
}

func (d *hopDevice) wait(_ context.Context, io *initiator.IO) (int, error) {
	done := make(chan struct{})
	io.Done = func(*initiator.IO) { close(done) }
	if err := d.Submit(io); err != nil {
		return 0, err
	}
	<-done
	return len(io.Buf), io.Err
}

// Close ends the connection, and with it both processes' part of it.
func (d *hopDevice) Close(context.Context) error {
	err := d.c.Close()
	<-d.done
	return err
}
