package envtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// reaper ends the server processes if this process dies without stopping them, by a panic or go
// test's time limit: a shell that waits for the end of a pipe which the system closes then.
type reaper struct {
	cmd *exec.Cmd
	in  io.Closer
}

// newReaper watches over those children of this process that run a binary of assets.
func newReaper(assets string) (*reaper, error) {
	pids, err := children(assets)
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	cmd := exec.Command("sh", append([]string{"-c", `cat >/dev/null; kill -9 "$@"`, "reaper"}, pids...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is not for it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &reaper{cmd, in}, cmd.Start()
}

// stop ends it without harm: the processes have ended, and their ids may be others' by now.
func (r *reaper) stop() {
	if r != nil {
		_ = r.cmd.Process.Kill()
		_ = r.in.Close()
		_ = r.cmd.Wait()
	}
}

func children(assets string) (pids []string, err error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		stat, _ := os.ReadFile(filepath.Join(d, "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ") // after the name: state, parent
		f := strings.Fields(rest)
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if len(f) > 1 && f[1] == fmt.Sprint(os.Getpid()) && strings.HasPrefix(string(line), assets+"/") {
			pids = append(pids, filepath.Base(d))
		}
	}
	return pids, err
}
