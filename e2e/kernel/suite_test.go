// Package kernel proves the worker's side on a real kernel: Debian's open-iscsi, multipathd and
// scsi_dh_alua in guests of an emulator, against real targets.
package kernel

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lag"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// labEnv is the folder that hack/vm/up.sh prints.
const labEnv = "GEMEL_VM_LAB"

// The suite runs in namespaces of its own.
func TestMain(m *testing.M) {
	if os.Getenv(labEnv) != "" && !netns.Isolated() {
		code, err := netns.Isolate(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestKernelSuite(t *testing.T) {
	if os.Getenv(labEnv) == "" {
		t.Skip("needs guests in an emulator: make e2e-kernel")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "kernel")
}

var (
	work   string // the suite's folder
	target string // gemel-target
	probe  string // e2e/kernel/probe
	fsx    string // e2e/kernel/fsx
	plugin string // gemel-csi
)

// What the machine does to this process while the suite runs.
var (
	runBegun = time.Now()
	machine  = lag.New(runBegun, tolerated)
)

// tolerated is how late the machine may run this process, or make a block durable, in an event that
// counts: a target's lease is 500 ms by default, and in half of it it has to hear its partner and
// write its record.
const tolerated = 200 * time.Millisecond

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	work, err = os.MkdirTemp("", "gemel-kernel-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, work)
	watch, stop := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	watcher.Go(func() { machine.Run(watch) })
	watcher.Go(func() {
		if err := machine.Sync(watch, work); err != nil {
			GinkgoLogr.Error(err, "the disk is not watched")
		}
	})
	DeferCleanup(func() { stop(); watcher.Wait() })
	target, err = harness.Build(ctx, work, "./cmd/gemel-target")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.Setenv("CGO_ENABLED", "0")).To(Succeed()) // for what runs on the guests' own Debian
	probe, err = harness.Build(ctx, work, "./e2e/kernel/probe")
	Expect(err).NotTo(HaveOccurred())
	fsx, err = harness.Build(ctx, work, "./e2e/kernel/fsx")
	Expect(err).NotTo(HaveOccurred())
	plugin, err = harness.Build(ctx, work, "./cmd/gemel-csi")
	Expect(err).NotTo(HaveOccurred())
})
