package sanity

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// agent runs a holder-agent for the rest of the test.
func (e *env) agent(sock string) *exec.Cmd {
	e.t.Helper()
	agent := exec.Command(csiBinary, "holder-agent", "--socket", sock, "--dir", filepath.Join(e.plugin.StateDir(), "attach"))
	agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	agent.Stdout, agent.Stderr = os.Stderr, os.Stderr
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		// The parent-death signal is tied to the thread that forks, and one that has run a plugin
		// may end with it.
		runtime.LockOSThread()
		err := agent.Start()
		started <- err
		if err == nil {
			ended <- agent.Wait()
		}
	}()
	e.ok(<-started)
	e.t.Cleanup(func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			e.t.Errorf("the agent ends with %v", err)
		}
	})
	e.ok(harness.Wait(e.ctx, "the agent serves", func() (bool, string) {
		_, err := os.Stat(sock)
		return err == nil, fmt.Sprint(err)
	}))
	return agent
}

// Holders that an agent starts are its children, not the plugin's, and serve as before.
func TestHolderAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts filesystems and binds loop devices")
	}
	// The plugin's folder is known only when it starts; the socket need not be below it.
	sock := filepath.Join(t.TempDir(), "agent.sock")
	e := start(t, 2*time.Minute, "--holder-agent", sock)
	v := e.create("agent", 320*mib, mounted("xfs"), nil)
	v.controllerPublish()
	if err := v.tryStage(); err == nil || !strings.Contains(err.Error(), "holder agent does not answer") {
		t.Fatalf("without the agent: %v", err)
	}
	agent := e.agent(sock)
	v.stage()
	v.publish()
	e.ok(v.write("before", "alpha"))
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.holder()))
	e.ok(err)
	after := string(stat[strings.LastIndexByte(string(stat), ')')+2:])
	if ppid := strings.Fields(after)[1]; ppid != fmt.Sprint(agent.Process.Pid) {
		t.Fatalf("the holder's parent is %s, not the agent %d", ppid, agent.Process.Pid)
	}
	e.ok(e.plugin.Kill())
	e.ok(v.write("during", "beta"))
	e.ok(e.plugin.Start(e.ctx))
	v.read("before", "alpha")
	v.down()
}
