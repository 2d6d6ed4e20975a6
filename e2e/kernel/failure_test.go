package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// logsDir keeps the evidence of failed specs, one folder for each spec, until the same spec fails
// again.
var logsDir = outFile("GEMEL_E2E_KERNEL_LOGS", "e2e-kernel-logs")

var notInNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// evidence is read from the guest with one command for each file: a guest in trouble may answer
// only some of them.
var evidence = map[string]string{
	"dmesg":     "dmesg",
	"multipath": "multipath -ll -v3; multipathd show config local; cat /etc/multipath/wwids",
	"iscsiadm":  "iscsiadm -m session -P 3",
	"devices":   "lsblk -o +UUID,STATE; dmsetup table; dmsetup status; lsscsi -l; cat /proc/self/mounts",
	"processes": "ps -eo pid,stat,wchan:32,etimes,args",
	"network":   "ip addr; ss -tnoi",
}

// tellFailure keeps the evidence of a failed spec and prints the ends of the logs.
func tellFailure(workers ...*worker) {
	if !CurrentSpecReport().Failed() {
		return
	}
	dir := filepath.Join(logsDir, notInNames.ReplaceAllString(CurrentSpecReport().FullText(), "-"))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		GinkgoWriter.Println(err)
		return
	}
	GinkgoWriter.Println("more is in", dir)
	for _, w := range workers {
		if w == nil {
			continue
		}
		keep := func(name string, text []byte, err error) {
			if err != nil {
				text = fmt.Append(text, "\n", err, "\n")
			}
			if err := os.WriteFile(filepath.Join(dir, w.name+"-"+name), text, 0o644); err != nil {
				GinkgoWriter.Println(err)
			}
		}
		for i, node := range harness.Names {
			text, err := os.ReadFile(w.rig.pair.LogFile(i))
			keep("target-"+node, text, err)
		}
		console, err := os.ReadFile(w.Console())
		keep("console", console, err)
		GinkgoWriter.Println(w.name, "console:", string(console[max(0, len(console)-3000):]))
		for name, line := range evidence {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			text, err := w.Shell(ctx, "exec 2>&1; "+line)
			cancel()
			keep(name, []byte(text), err)
		}
		text := w.log()
		keep("plugin", []byte(text), nil)
		GinkgoWriter.Println(w.name, "plugin:", text[max(0, len(text)-8000):])
	}
}
