package pair

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

func image(p *harness.Pair, i int, uuid string) string {
	return filepath.Join(p.State[i], "volumes", "default", "luns", uuid+".img")
}

// alike compares a LUN's copies; no target may run.
func alike(t *testing.T, p *harness.Pair, uuid string) {
	t.Helper()
	a, err := os.ReadFile(image(p, 0, uuid))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(image(p, 1, uuid))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Fatal("the two copies differ")
	}
}

// through opens the LUN on one node's portals only.
func through(t *testing.T, ctx context.Context, m *targetv1.Mapping, node string) *initiator.Device {
	t.Helper()
	one := &targetv1.Mapping{HostIqn: m.HostIqn, TargetIqn: m.TargetIqn, Lun: m.Lun, Wwid: m.Wwid}
	for _, p := range m.Portals {
		if p.Node == node {
			one.Portals = append(one.Portals, p)
		}
	}
	return open(t, ctx, one)
}

// finish ends a load and checks all of it: by the device that wrote, by each node alone, and on the
// disks.
func finish(t *testing.T, ctx context.Context, p *harness.Pair, l *load, lun *targetv1.LUN, m *targetv1.Mapping) {
	t.Helper()
	finishLoad(t, ctx, l, m)
	for i := range harness.Names {
		if err := p.Term(i); err != nil {
			t.Fatal(err)
		}
	}
	alike(t, p, lun.Uuid)
}

// finishLoad ends a load and checks all of it, by the device that wrote and by each node alone.
func finishLoad(t *testing.T, ctx context.Context, l *load, m *targetv1.Mapping) {
	t.Helper()
	close(l.stop)
	l.wg.Wait()
	l.verify(t, ctx, l.d)
	for _, n := range harness.Names {
		l.verify(t, ctx, through(t, ctx, m, n))
	}
	closeDevice(l.d.(*initiator.Device))
}

func closeDevice(d *initiator.Device) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = d.Close(ctx)
}

func loaded(t *testing.T, owner string) (*harness.Pair, context.Context, *load, *targetv1.LUN, *targetv1.Mapping) {
	t.Helper()
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 32<<20, owner)
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)
	l.pauseSince()
	return p, ctx, l, lun, m
}

// The owner is stopped for three seconds and continues: it must find out that it is no longer a
// member, must not answer or apply earlier commands, and is resynced.
func TestStoppedOwnerStepsAside(t *testing.T) {
	p, ctx, l, lun, m := loaded(t, "a")
	if err := p.Signal(0, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	if err := p.WaitPhase(ctx, 1, targetv1.Phase_PHASE_ALONE); err != nil {
		t.Error(err)
	}
	l.more(t, ctx, 500)
	if err := harness.Wait(ctx, "three seconds are over", func() (bool, string) { return time.Since(stopped) > 3*time.Second, "" }); err != nil {
		t.Error(err)
	}
	if err := p.Signal(0, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	s, err := p.Status(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if s.Epoch != 3 || s.Resync.GetFinished() == nil {
		t.Errorf("epoch %d, resync %v: one exclude and one readmission were due", s.Epoch, s.Resync)
	}
	t.Logf("longest write %v", l.pauseSince())
	finish(t, ctx, p, l, lun, m)
}

func TestOrderlyStopOfTheOwner(t *testing.T) {
	p, ctx, l, lun, m := loaded(t, "a")
	if err := p.Term(0); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	pause := l.pauseSince()
	t.Logf("hand-over: longest write %v", pause)
	if pause > 2*time.Second {
		t.Errorf("hand-over held a write for %v", pause)
	}
	if s, err := p.Status(ctx, 1); err != nil || s.Phase != targetv1.Phase_PHASE_ALONE {
		t.Errorf("%v, %v", s, err)
	}
	if err := p.StartNode(0); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 100)
	finish(t, ctx, p, l, lun, m)
}

func TestKillOfThePartner(t *testing.T) {
	p, ctx, l, lun, m := loaded(t, "a")
	if err := p.Kill(1); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	pause := l.pauseSince()
	t.Logf("partner killed: longest write %v", pause)
	if pause > 5*time.Second {
		t.Errorf("the partner's death held a write for %v", pause)
	}
	if err := p.StartNode(1); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	finish(t, ctx, p, l, lun, m)
}

func TestBothKilled(t *testing.T) {
	for name, order := range map[string][2]int{"a first": {0, 1}, "b first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			p, ctx, l, lun, m := loaded(t, "a")
			for _, i := range order {
				if err := p.Kill(i); err != nil {
					t.Fatal(err)
				}
			}
			for _, i := range order {
				if err := p.StartNode(i); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.WaitInSync(ctx); err != nil {
				t.Fatal(err)
			}
			l.more(t, ctx, 500)
			finish(t, ctx, p, l, lun, m)
		})
	}
}

// Both nodes fail at once in every way, and the partner never comes back: the survivor continues
// alone.
func TestOwnerRestartsWhilePartnerIsGone(t *testing.T) {
	p, ctx, l, lun, m := loaded(t, "a")
	for _, i := range []int{1, 0} {
		if err := p.Kill(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.StartNode(0); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitPhase(ctx, 0, targetv1.Phase_PHASE_ALONE); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 100)
	if err := p.StartNode(1); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	finish(t, ctx, p, l, lun, m)
}

func TestStoreOfTheOtherNodeIsRefused(t *testing.T) {
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 8<<20, "a")
	d := open(t, ctx, m)
	want := pattern(4096, 5)
	if _, err := d.WriteAt(ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	closeDevice(d)
	for i := range harness.Names {
		if err := p.Term(i); err != nil {
			t.Fatal(err)
		}
	}
	p.State[0], p.State[1] = p.State[1], p.State[0]
	if err := p.StartNode(0); err != nil {
		t.Fatal(err)
	}
	if err := harness.Wait(ctx, "the process says what is wrong", func() (bool, string) {
		b, _ := os.ReadFile(p.LogFile(0))
		return strings.Contains(string(b), "not this node's"), string(b)
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Term(0); err == nil {
		t.Error("the process ends as if all were well")
	}
	p.State[0], p.State[1] = p.State[1], p.State[0]
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := open(t, ctx, m).ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: %v", err)
	}
	_ = lun
}
