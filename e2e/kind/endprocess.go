package kind

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// readyToKill finds the processes of a command line on a worker. What it returns ends them at once:
// the shell that does it runs already.
func readyToKill(ctx context.Context, worker, commandLine string) func() {
	GinkgoHelper()
	pids, err := run(ctx, "", "docker", "exec", worker, "pgrep", "-f", commandLine)
	Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(ctx, "docker", "exec", "-i", worker, "bash")
	stdin, err := cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	stdout, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() { _, _ = stdin.Close(), cmd.Wait() })
	_, err = io.WriteString(stdin, "echo ready\n")
	Expect(err).NotTo(HaveOccurred())
	Expect(bufio.NewReader(stdout).ReadString('\n')).To(Equal("ready\n"))
	return func() {
		GinkgoHelper()
		_, err := fmt.Fprintln(stdin, "kill -KILL", strings.Join(strings.Fields(pids), " "))
		Expect(err).NotTo(HaveOccurred())
	}
}

// nextValue watches objects of a kind, and returns when a field of one is set. The watch begins
// before change is called.
func nextValue(ctx context.Context, kind, path string, change func()) string {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, "kubectl", "get", kind, "--watch", "-o", "jsonpath="+path+`{"\n"}`)
	stdout, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	change()
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if s := strings.TrimSpace(lines.Text()); s != "" {
			return s
		}
	}
	Fail("the watch of " + kind + " has ended")
	return ""
}
