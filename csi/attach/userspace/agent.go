package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Agent starts holders for a node plugin that may be restarted at any time, and is their parent. In
// a cluster the processes of a pod end with it, so the agent has a separate pod, which is not
// replaced while volumes are in use. It is independent of volumes: folders and files come with the
// request.
type Agent struct {
	Socket  string   // path of the Unix socket
	Dir     string   // only folders below it are served
	Command []string // starts a holder; "--dir FOLDER" is appended
	Log     *slog.Logger

	holders sync.WaitGroup
}

// Run serves until the context ends, then stops listening. Holders continue to run unless the
// caller ends their process tree.
func (a *Agent) Run(ctx context.Context) error {
	if !filepath.IsAbs(a.Dir) || !filepath.IsAbs(a.Socket) {
		return fmt.Errorf("holder agent: --dir %q and --socket %q must be absolute paths", a.Dir, a.Socket)
	}
	if err := errors.Join(os.MkdirAll(a.Dir, 0o700), os.MkdirAll(filepath.Dir(a.Socket), 0o700)); err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(a.Dir)
	if err != nil {
		return err
	}
	a.Dir = dir
	if err := os.Remove(a.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	old := syscall.Umask(0o077)
	l, err := net.Listen("unix", a.Socket)
	syscall.Umask(old)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	a.Log.Info("serving", "socket", a.Socket, "dir", a.Dir)
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		calls.Go(func() { a.serve(c.(*net.UnixConn)) })
	}
}

func (a *Agent) serve(c *net.UnixConn) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(agentTime))
	var r agentReply
	if err := a.start(c); err != nil {
		a.Log.Error("cannot start a holder", "err", err)
		r.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(r)
}

// start reads one request with its four files and starts the holder.
func (a *Agent) start(c *net.UnixConn) error {
	raw, oob := make([]byte, 8192), make([]byte, unix.CmsgSpace(4*4))
	n, on, _, _, err := c.ReadMsgUnix(raw, oob)
	if err != nil {
		return err
	}
	files, err := received(oob[:on])
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err != nil {
		return err
	}
	var req agentRequest
	if err := json.Unmarshal(raw[:n], &req); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if len(files) != 4 {
		return fmt.Errorf("request for %q has %d files, want 4", req.Dir, len(files))
	}
	if rel, err := filepath.Rel(a.Dir, req.Dir); err != nil || rel == "." || strings.Contains(rel, "/") || rel == ".." {
		return fmt.Errorf("folder %q is not directly below %s", req.Dir, a.Dir)
	}
	cmd, err := startCommand(a.Command, req.Dir, holderFiles{files[0], files[1], files[2], files[3]})
	if err != nil {
		return err
	}
	a.Log.Info("started a holder", "dir", req.Dir, "pid", cmd.Process.Pid)
	a.holders.Go(func() {
		err := cmd.Wait()
		a.Log.Info("a holder has ended", "dir", req.Dir, "pid", cmd.Process.Pid, "err", err)
	})
	return nil
}

// received returns the files in a message's control data.
func received(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}
