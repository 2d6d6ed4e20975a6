package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// libiscsi, the initiator of QEMU's block driver, has one path and no ALUA. Under QEMU's name it
// reads from the node that does not own the LUN while that node is killed, comes back and does
// not serve for a while: it logs in until the node serves, no command fails, and each one is
// answered once.
//
// The wire says so, because iscsi-perf cannot: it does not end on its own after a unit attention.
// cb in utils/iscsi-perf.c (1.19 and later) sends the command again and subtracts one from
// in_flight all the same. With more commands under way than it counts, the last answers take
// in_flight from above zero to below, and main waits for zero for ever. Each login that replaces a
// lost session has the unit attention 29h/00h (SAM-5 §5.14); at the first login libiscsi takes it
// itself.
func TestHostWithOnePathOutlastsARestart(t *testing.T) {
	if _, err := exec.LookPath("iscsi-perf"); err != nil {
		t.Skip("skipped: iscsi-perf is not installed (Debian: libiscsi-bin); `make deps` installs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	target, err := harness.Build(ctx, dir, "./cmd/gemel-target")
	if err != nil {
		t.Fatal(err)
	}
	p, err := harness.New(harness.Options{Dir: t.TempDir(), Binary: target})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	const host = "iqn.2008-11.org.linux-kvm:vm-1"
	id := uuid.NewString()
	if _, err := p.Client(0).CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "vm", SizeBytes: 64 << 20, PreferredNode: "a"}); err != nil {
		t.Fatal(err)
	}
	m, err := p.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	if err != nil {
		t.Fatal(err)
	}
	w := watch(t, p.ISCSI[1])
	var out bytes.Buffer
	perf := exec.CommandContext(ctx, "iscsi-perf", "-i", host, "-m", "4", "-b", "8", "-t", "120", "-r", fmt.Sprintf("iscsi://%s/%s/%d", w.addr, p.IQN(), m.Lun))
	perf.Stdout, perf.Stderr = &out, &out
	if err := perf.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- perf.Wait() }()
	// reads waits until the host has read n times from the present process of the node.
	reads := func(n uint64) {
		t.Helper()
		if err := harness.Wait(ctx, fmt.Sprint(n, " reads"), func() (bool, string) {
			work, err := p.Client(1).GetWork(ctx, &targetv1.GetWorkRequest{})
			if err != nil {
				return false, err.Error()
			}
			got := uint64(0)
			for _, l := range work.Luns {
				for _, k := range l.Work {
					if k.Kind == "read" {
						got += k.Operations
					}
				}
			}
			return got >= n, fmt.Sprint(got)
		}); err != nil {
			t.Fatal(err)
		}
	}
	reads(1000)
	// Both nodes end, and the one that the host uses comes back as no member: it does not serve
	// before the other one is back.
	for _, err := range []error{p.Kill(1), p.WaitPhase(ctx, 0, targetv1.Phase_PHASE_ALONE), p.Kill(0), p.StartNode(1), p.WaitPhase(ctx, 1, targetv1.Phase_PHASE_JOINING)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(3 * time.Second) // it tries to log in meanwhile
	begun := time.Now()
	if err := p.StartNode(0); err != nil {
		t.Fatal(err)
	}
	reads(1)
	t.Logf("it read again after %v", time.Since(begun))
	reads(1000)
	// It goes on reading, so what was under way is answered within moments or never.
	soon, done := context.WithTimeout(ctx, 20*time.Second)
	defer done()
	under := w.unanswered()
	if err := harness.Wait(soon, "each request has its answer", func() (bool, string) {
		now := w.unanswered()
		under = slices.DeleteFunc(under, func(what string) bool { return !slices.Contains(now, what) })
		return len(under) == 0, strings.Join(under, "; ")
	}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("it gave up: %v: %s", err, &out)
	default:
	}
	if logins, answers, faults := w.verdict(); logins != 2 || answers < 2000 || len(faults) > 0 {
		t.Errorf("%d logins, 2 are expected; %d answers:\n%s", logins, answers, strings.Join(faults, "\n"))
	}
	if err := perf.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if strings.Contains(out.String(), "failed") || strings.Contains(out.String(), "error") {
		t.Errorf("%s", &out)
	}
}
