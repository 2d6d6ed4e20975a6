package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/resident"
)

// holderFiles are the open files of a new holder.
type holderFiles struct {
	stdin, log, tell, lock *os.File
}

// spawner starts holders: as children of this process, or of an agent that outlives it.
type spawner interface {
	// spawn starts a holder for a folder. end releases it, or kills it if it is not needed after
	// all.
	spawn(ctx context.Context, dir string, f holderFiles) (end func(kill bool), err error)
}

// children starts holders as children of this process.
type children struct{ command []string }

func (c children) spawn(_ context.Context, dir string, f holderFiles) (func(bool), error) {
	cmd, err := startCommand(c.command, dir, f)
	if err != nil {
		return nil, err
	}
	return func(kill bool) {
		if kill {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return
		}
		_ = cmd.Process.Release() // reaped by stopHolder
	}, nil
}

func startCommand(command []string, dir string, f holderFiles) (*exec.Cmd, error) {
	cmd := exec.Command(command[0], append(command[1:], "--dir", dir)...)
	cmd.Args[0] = os.Args[0] // shown by ps
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = "/", f.stdin, f.log, f.log, []string{}
	for _, k := range []string{"PATH", "GODEBUG", "GOGC", "GOMEMLIMIT", "GORACE"} { // no others, which may be secret
		if v, ok := os.LookupEnv(k); ok {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.ExtraFiles = []*os.File{f.tell, f.lock} // 3 and 4
	// A separate session, so that signals to the plugin's process group do not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, resident.StartFlusher(cmd) // it serves a block device of this machine
}

// agentClient starts holders through an Agent. The files are sent with the request, so that a
// holder is the same whichever process is its parent: it has the lock from its start.
type agentClient struct{ socket string }

type agentRequest struct {
	Dir string `json:"dir"`
}

type agentReply struct {
	Error string `json:"error,omitempty"`
}

// agentTime bounds a call to the agent.
const agentTime = 10 * time.Second

// ErrAgent: the agent does not answer.
var ErrAgent = errors.New("the holder agent does not answer: check that its pod on this worker runs")

func (a agentClient) spawn(ctx context.Context, dir string, f holderFiles) (func(bool), error) {
	d := net.Dialer{Timeout: agentTime}
	conn, err := d.DialContext(ctx, "unix", a.socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAgent, err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(agentTime))
	raw, err := json.Marshal(agentRequest{Dir: dir})
	if err != nil {
		return nil, err
	}
	rights := unix.UnixRights(int(f.stdin.Fd()), int(f.log.Fd()), int(f.tell.Fd()), int(f.lock.Fd()))
	if _, _, err := conn.(*net.UnixConn).WriteMsgUnix(raw, rights, nil); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAgent, err)
	}
	var r agentReply
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAgent, err)
	}
	if r.Error != "" {
		return nil, fmt.Errorf("the holder agent cannot start a holder: %s", r.Error)
	}
	return func(kill bool) {
		if kill {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), agentTime)
			defer cancel()
			_ = killHolder(ctx, dir)
		}
	}, nil
}
