package rig

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/gemel-storage/gemel/internal/certfiles"
)

// Bare hops are what a mirrored write costs at least: the same two processes, the same connections,
// frames of the same sizes, batched as targets do it, but no SCSI, no locks, no disk. Process a
// hands a write on to process b and answers when b has; a read it answers by itself.

// hopHeader is the size of a request without its data, and of an answer without any: as in iSCSI.
const hopHeader = 48

// hopEnv tells a process that it is one: its value is "ADDRESS" for b, "ADDRESS NEXT" for a, with
// the folder of the certificates for TLS.
const (
	hopListenEnv = "GEMEL_BENCH_HOP_LISTEN"
	hopNextEnv   = "GEMEL_BENCH_HOP_NEXT"
	hopPKIEnv    = "GEMEL_BENCH_HOP_PKI"
)

// HopMain runs a bare hop and does not return if this process is one.
func HopMain() {
	listen := os.Getenv(hopListenEnv)
	if listen == "" {
		return
	}
	err := serveHop(listen, os.Getenv(hopNextEnv), os.Getenv(hopPKIEnv))
	fmt.Fprintln(os.Stderr, "hop:", err)
	os.Exit(1)
}

// frame header: tag, whether it is a write, length of the data.
func hopFields(h []byte) (write bool, n int) { return h[8] == 1, int(binary.BigEndian.Uint32(h[12:])) }

func putHop(h []byte, tag uint64, write bool, n int) {
	binary.BigEndian.PutUint64(h, tag)
	h[8] = 0
	if write {
		h[8] = 1
	}
	binary.BigEndian.PutUint32(h[12:], uint32(n))
}

// hopBuffer is how much is read and written at once.
const hopBuffer = 1 << 20

// maxHopData bounds a frame's data, bytes.
const maxHopData = 1 << 20

var errHopFrame = errors.New("hop: a frame with more data than 1 MiB")

func serveHop(listen, next, pki string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	defer l.Close()
	var up net.Conn
	var server *tls.Config
	if pki != "" {
		node := "b"
		if next != "" {
			node = "a"
		}
		files, err := certfiles.Load(pki+"/"+node+".pem", pki+"/"+node+".key", pki+"/ca.pem")
		if err != nil {
			return err
		}
		any := func(tls.ConnectionState) error { return nil } // the authority is this run's own
		if next != "" {
			if up, err = tls.Dial("tcp", next, files.Client(any)); err != nil {
				return err
			}
		} else {
			server = files.Server(any)
		}
	} else if next != "" {
		if up, err = net.Dial("tcp", next); err != nil {
			return err
		}
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if server != nil {
			c = tls.Server(c, server)
		}
		if up == nil {
			go func() { _ = answerAll(c) }()
			continue
		}
		return relay(c, up)
	}
}

// answerAll is process b: it takes what comes and answers each frame.
func answerAll(c net.Conn) error {
	defer c.Close()
	return eachFrame(c, c, func(out *bufio.Writer, h, _ []byte, write bool) error {
		_, err := out.Write(h)
		return err
	})
}

// eachFrame hands every frame of in to f, with a writer that is flushed when nothing more has
// arrived.
func eachFrame(in io.Reader, to io.Writer, f func(out *bufio.Writer, h, data []byte, write bool) error) error {
	r, out := bufio.NewReaderSize(in, hopBuffer), bufio.NewWriterSize(to, hopBuffer)
	h, data := make([]byte, hopHeader), make([]byte, maxHopData)
	for {
		if _, err := io.ReadFull(r, h); err != nil {
			return err
		}
		write, n := hopFields(h)
		if n > maxHopData {
			return errHopFrame
		}
		carried := 0
		if write {
			carried = n
		}
		if _, err := io.ReadFull(r, data[:carried]); err != nil {
			return err
		}
		if err := f(out, h, data[:n], write); err != nil {
			return err
		}
		if r.Buffered() < hopHeader {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

// lockedWriter is the client's connection, to which both directions answer.
type lockedWriter struct {
	mu sync.Mutex
	c  net.Conn
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.c.Write(p)
}

// relay is process a. It ends with either connection.
func relay(client, up net.Conn) error {
	answers := &lockedWriter{c: client}
	errs := make(chan error, 2)
	go func() {
		r, out := bufio.NewReaderSize(up, hopBuffer), bufio.NewWriterSize(answers, hopBuffer)
		h := make([]byte, hopHeader)
		for {
			if _, err := io.ReadFull(r, h); err != nil {
				errs <- err
				return
			}
			_, _ = out.Write(h)
			if r.Buffered() < hopHeader {
				if err := out.Flush(); err != nil {
					errs <- err
					return
				}
			}
		}
	}()
	go func() {
		reads := bufio.NewWriterSize(answers, hopBuffer)
		errs <- eachFrame(client, up, func(out *bufio.Writer, h, data []byte, write bool) error {
			if write {
				_, _ = out.Write(h)
				_, err := out.Write(data)
				return err
			}
			_, _ = reads.Write(h)
			_, _ = reads.Write(data)
			return reads.Flush()
		})
	}()
	err := <-errs
	client.Close()
	up.Close()
	<-errs
	return err
}
