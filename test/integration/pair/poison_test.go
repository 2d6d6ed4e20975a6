package pair

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// poison crashes the process that executes it: the nodes of this test are built with a defect.
var poison = append([]byte("gemel: crash here"), make([]byte, blockSize-17)...)

// A command that crashes each process that executes it ends two of them, three at most, and then
// its LUN is quarantined. The other LUNs of the pair go on without an error or a lost write. The
// quarantine outlives restarts of both nodes, and ends when an administrator says so; what was
// written before is there.
func TestLUNThatEndsProcesses(t *testing.T) {
	bin, err := harness.Build(t.Context(), t.TempDir(), "./cmd/gemel-target", append(slices.Clone(buildFlags), "-tags=gemel_poison")...)
	if err != nil {
		t.Fatal(err)
	}
	p, ctx := startWith(t, func(o *harness.Options) { o.Supervisors, o.Binary = true, bin })
	if err := p.WaitSupervisors(ctx); err != nil {
		t.Fatal(err)
	}
	bad, badMap := createLUN(t, ctx, p, 32<<20, "a")
	lun, m := createLUN(t, ctx, p, 32<<20, "b")
	d := open(t, ctx, badMap)
	before := pattern(blockSize, 7)
	if _, err := d.WriteAt(ctx, before, 1<<20); err != nil {
		t.Fatal(err)
	}
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)

	again, cease := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // a host, which repeats the command as long as it lives
		_, err := d.WriteAt(again, poison, 0)
		ended <- err
	}()
	quarantined := func() (bool, string) {
		for i := range harness.Names {
			x, err := p.Client(i).GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: bad.Uuid})
			if err != nil || x.Quarantine == "" {
				return false, fmt.Sprintf("node %s: %v, %v", harness.Names[i], x, err)
			}
		}
		return true, ""
	}
	if err := harness.Wait(ctx, "both nodes know of the quarantine", quarantined); err != nil {
		t.Fatal(err)
	}
	crashes := uint64(0)
	for i := range harness.Names {
		s, err := p.Status(ctx, i)
		if err != nil || !slices.Equal(s.QuarantinedLuns, []string{bad.Uuid}) {
			t.Fatalf("%v, %v", s, err)
		}
		crashes += s.Supervisor.GetCrashes()
	}
	if crashes < 2 || crashes > 3 {
		t.Errorf("%d processes were ended", crashes)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	t.Logf("%d processes were ended; the longest write to the other LUN took %v", crashes, l.pauseSince())
	waits := func() {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := d.ReadAt(short, make([]byte, blockSize), 1<<20); err == nil || short.Err() == nil {
			t.Fatalf("a read of the quarantined LUN: %v", err)
		}
	}
	waits()

	// Both nodes are restarted, one after the other, with their supervisors.
	for i := range harness.Names {
		if err := p.Term(i); err != nil {
			t.Fatal(err)
		}
		if err := p.StartNode(i); err != nil {
			t.Fatal(err)
		}
		if err := p.WaitInSync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if ok, text := quarantined(); !ok {
		t.Fatalf("after the restarts: %s", text)
	}
	waits()
	select {
	case err := <-ended:
		t.Fatalf("the host gave up: %v", err)
	default:
	}
	cease()
	if err := <-ended; err == nil {
		t.Fatal("the command succeeded")
	}
	if _, err := p.Client(1).ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: bad.Uuid, EndQuarantine: true}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, blockSize)
	if _, err := d.ReadAt(ctx, got, 1<<20); err != nil || !bytes.Equal(got, before) {
		t.Fatalf("what was written before the crashes: %v", err)
	}
	if s, err := p.Status(ctx, 0); err != nil || len(s.QuarantinedLuns) != 0 {
		t.Fatalf("%v, %v", s, err)
	}
	finish(t, ctx, p, l, lun, m)
}
