package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// stacks has nodes that do not come back say in their logs what every goroutine waits for. They end
// by that.
func (x *runner) stacks() {
	for i := range harness.Names {
		x.threads("node "+harness.Names[i], x.rig.pair.Serving(i))
		x.threads("disk of node "+harness.Names[i], x.rig.slow[i].PID)
		x.rig.signal(i, syscall.SIGCONT)
		x.rig.signal(i, syscall.SIGQUIT)
	}
	deadline := time.Now().Add(5 * time.Second)
	for i := range harness.Names {
		for x.rig.pair.PID(i) != 0 && time.Now().Before(deadline) {
			if ended, _ := x.rig.pair.Ended(i); ended {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// threads says where the kernel has the threads of a process.
func (x *runner) threads(what string, pid int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, t := range tasks {
		read := func(name string) string {
			b, err := os.ReadFile(filepath.Join(t, name))
			if err != nil {
				return err.Error()
			}
			return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; ")
		}
		stat := strings.Fields(read("stat"))
		if len(stat) > 2 {
			fmt.Fprintf(x.cfg.Out, "    %s, thread %s: %s, %s, syscall %s, stack %s\n", what, filepath.Base(t), stat[2], read("wchan"), read("syscall"), read("stack"))
		}
	}
}

// keepLogs copies what a failed run's nodes have said.
func (x *runner) keepLogs() {
	if x.cfg.Logs == "" {
		return
	}
	for i, n := range harness.Names {
		b, err := os.ReadFile(x.rig.pair.LogFile(i))
		if err == nil {
			err = os.MkdirAll(x.cfg.Logs, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(x.cfg.Logs, "node-"+n+".log"), b, 0o644)
		}
		if err != nil {
			fmt.Fprintln(x.cfg.Out, "logs:", err)
			return
		}
	}
	fmt.Fprintf(x.cfg.Out, "the nodes' logs are in %s; SEED=%d plays the same faults again\n", x.cfg.Logs, x.cfg.Seed)
}
