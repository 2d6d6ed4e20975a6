package holder

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// The control protocol: one JSON request per line, one JSON answer per line, over a Unix socket in
// the folder.
const socketName = "ctl.sock"

// Bounds of a line, in bytes. An answer has every path, with its last error: those of a striped
// volume with eight sessions to each portal are 256.
const (
	maxRequest = 64 << 10
	maxAnswer  = 1 << 20
)

// Operations.
const (
	OpStatus = "status"
	OpResize = "resize" // read the capacity again
	OpRenew  = "renew"  // use other credentials for the next logins
)

// Request is one line to the holder. Only root can access the folder of the socket.
type Request struct {
	Op               string       `json:"op"`
	Auth, MutualAuth *attach.CHAP `json:",omitempty"`     // OpRenew
	Pair             string       `json:"pair,omitempty"` // OpRenew: whose targets they are for; empty: all
}

// Answer is one line from the holder.
type Answer struct {
	Error      string        `json:"error,omitempty"`
	Generation uint64        `json:"generation"`
	Size       int64         `json:"size"`
	Paths      []attach.Path `json:"paths"`
	NoUnit     bool          `json:"noUnit,omitempty"` // see attach.Status
	// Requests since the start.
	Reads   uint64 `json:"reads"`
	Writes  uint64 `json:"writes"`
	Zeroes  uint64 `json:"zeroes"`
	Flushes uint64 `json:"flushes"`
	Errors  uint64 `json:"errors"`
}

type control struct {
	files      *files
	attachment attach.Attachment

	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// viaDir calls f with a short path to dir: the address of a Unix socket has at most 107 bytes.
func viaDir(dir string, f func(short string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("control socket: %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", fd, socketName))
}

func listenControl(dir string, c *control) (*control, error) {
	c.conns = map[net.Conn]struct{}{}
	if err := os.Remove(filepath.Join(dir, socketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	err := viaDir(dir, func(short string) (err error) {
		c.l, err = net.Listen("unix", short)
		if err == nil {
			// The short path is invalid when the socket is closed; the folder's owner removes the
			// file.
			c.l.(*net.UnixListener).SetUnlinkOnClose(false)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c.wg.Go(c.accept)
	return c, nil
}

func (c *control) accept() {
	for {
		conn, err := c.l.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.conns == nil || len(c.conns) >= 16 {
			c.mu.Unlock()
			_ = conn.Close()
			continue
		}
		c.conns[conn] = struct{}{}
		c.mu.Unlock()
		c.wg.Go(func() {
			c.serve(conn)
			_ = conn.Close()
			c.mu.Lock()
			delete(c.conns, conn)
			c.mu.Unlock()
		})
	}
}

func (c *control) serve(conn net.Conn) {
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxRequest)
	for in.Scan() {
		var req Request
		a := Answer{}
		if err := json.Unmarshal(in.Bytes(), &req); err != nil {
			a.Error = "not a request: " + err.Error()
		} else {
			a = c.answer(req)
		}
		if err := json.NewEncoder(conn).Encode(a); err != nil {
			return
		}
	}
}

func (c *control) answer(req Request) Answer {
	f := c.files
	var err error
	switch req.Op {
	case OpStatus:
	case OpResize:
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err = f.resize(ctx)
		cancel()
	case OpRenew:
		if err = f.legs.setCredentials(c.attachment, req.Pair, chap(req.Auth), chap(req.MutualAuth)); err == nil {
			f.log.Info("renewed the credentials")
		}
	default:
		err = fmt.Errorf("unknown operation %q", req.Op)
	}
	a := Answer{Generation: c.attachment.Generation, Size: f.size.Load(), NoUnit: f.legs.noUnit(), Reads: f.reads.Load(), Writes: f.writes.Load(),
		Zeroes: f.zeroes.Load(), Flushes: f.flushes.Load(), Errors: f.errors.Load(), Paths: f.legs.paths()}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func (c *control) close() {
	_ = c.l.Close()
	c.mu.Lock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	c.mu.Unlock()
	c.wg.Wait()
}

// Ask sends one request to the holder of a folder, and returns the answer's Error as an error.
func Ask(ctx context.Context, dir string, req Request) (a Answer, err error) {
	err = viaDir(dir, func(short string) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", short)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		if err := json.NewEncoder(conn).Encode(req); err != nil {
			return err
		}
		out := bufio.NewScanner(conn)
		out.Buffer(nil, maxAnswer)
		if !out.Scan() {
			if err := errors.Join(ctx.Err(), out.Err()); err != nil {
				return err
			}
			return errors.New("the holder closed the connection")
		}
		return json.Unmarshal(out.Bytes(), &a)
	})
	if err != nil {
		return a, fmt.Errorf("holder: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("holder: %s", a.Error)
	}
	return a, nil
}
