package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// probe is e2e/kernel/probe in a pod: it writes with O_DIRECT at a steady rate until it is
// stopped, and remembers what was acknowledged, each block's last write.
type probe struct{ ns, pod, socket string }

// measured is what it answers.
type measured struct {
	Operations int64    `json:"operations"`
	LongestMS  float64  `json:"longest_ms"`
	Errors     []string `json:"errors"`
	Lost       []string `json:"lost"`
}

// Four writers of 4 KiB, each at most 50 times a second.
const (
	probeBytes = 32 << 20
	probeDepth = 4
	probePace  = 20 * time.Millisecond
)

// startProbe begins to write to a file of its own on the volume of a pod that runs, and opens a
// window of measurement. dir keeps the program.
func startProbe(ctx context.Context, dir, ns, pod, name string) *probe {
	GinkgoHelper()
	program, err := harness.Build(ctx, dir, "./e2e/kernel/probe", "-ldflags=-s -w")
	Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(program)
	Expect(err).NotTo(HaveOccurred())
	_, err = run(ctx, string(content), "kubectl", "exec", "-i", "-n", ns, pod, "--", "bash", "-c", "cat >/tmp/probe.new && chmod +x /tmp/probe.new && mv /tmp/probe.new /tmp/probe")
	Expect(err).NotTo(HaveOccurred())
	p := &probe{ns, pod, "/tmp/" + name + ".sock"}
	inPod(ctx, ns, pod, fmt.Sprintf("truncate -s %[2]d /data/%[1]s && (setsid /tmp/probe /data/%[1]s %[2]d %[3]d %[4]s %[5]s >/tmp/%[1]s.log 2>&1 </dev/null &)",
		name, probeBytes, probeDepth, p.socket, probePace))
	// The file is laid out first; what happens before that is no operation on a file that is there.
	Eventually(func() (int64, error) {
		m, err := p.ask(ctx, "count")
		return m.Operations, err
	}).WithContext(ctx).WithTimeout(5 * time.Minute).Should(BeNumerically(">=", probeBytes/4096))
	p.answer(ctx, "window")
	return p
}

// ask may be repeated: the way to the pod leads over the API server, which is busy too. What is
// answered once only is kept in the pod.
func (p *probe) ask(ctx context.Context, what string) (m measured, err error) {
	curl := fmt.Sprintf("curl -sS --fail-with-body --max-time 240 --unix-socket %s http://probe/%s", p.socket, what)
	if what == "measure" || what == "finish" {
		kept := p.socket + "." + what
		curl = fmt.Sprintf("if ! [ -e %[1]s ]; then %[2]s -o %[1]s.new && mv %[1]s.new %[1]s; fi; cat %[1]s", kept, curl)
	}
	out, err := run(ctx, "", "kubectl", "exec", "-n", p.ns, p.pod, "--", "bash", "-c", curl)
	if err == nil {
		err = json.Unmarshal([]byte(out), &m)
	}
	return m, err
}

// answer is what it says, and no command of it has failed.
func (p *probe) answer(ctx context.Context, what string) (m measured) {
	GinkgoHelper()
	Eventually(func() (err error) {
		m, err = p.ask(ctx, what)
		return err
	}).WithContext(ctx).WithTimeout(5*time.Minute).Should(Succeed(), what)
	results.PodIOErrors += len(m.Errors)
	results.LostWrites += len(m.Lost)
	Expect(m.Errors).To(BeEmpty(), what)
	Expect(m.Lost).To(BeEmpty(), strings.Join(m.Lost, "\n"))
	return m
}

// finish closes the window, ends the writes and reads everything back. It gives the operations of
// the window and the longest of them.
func (p *probe) finish(ctx context.Context) measured {
	GinkgoHelper()
	m := p.answer(ctx, "measure")
	results.Operations += uint64(p.answer(ctx, "finish").Operations)
	return m
}
