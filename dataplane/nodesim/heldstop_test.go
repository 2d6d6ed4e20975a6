package nodesim

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/dataplane/node"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A node that is asked to stop while its commands wait for what cannot come, since neither its peer
// nor the arbiter can be reached, ends within the bounds of an orderly stop, whatever they wait
// for.
func TestStopWhileCommandsAreHeld(t *testing.T) {
	for _, x := range []struct {
		name  string
		waits string
		owner int // of the fencer's LUN
		do    func(w *world)
	}{
		{"a mirrored write", pair.WaitsMirror, 0, func(*world) {}}, // hosts write to its LUN
		{"a decision", pair.WaitsDecision, 0, func(w *world) { // it comes when the exclusion has begun
			w.busy.Go(func() { time.Sleep(time.Second); w.readBlock(w.fencers[0]) })
		}},
		{"a flush", pair.WaitsFlush, 0, func(w *world) {
			w.busy.Go(func() { w.fencers[0].exec(0, "FLUSH", 0, []byte{0x35, 9: 0}, nil, nil) })
		}},
		{"the owner", pair.WaitsOwner, 1, func(w *world) {
			w.busy.Go(func() { w.readBlock(w.fencers[0]) })
		}},
		{"a log entry", pair.WaitsEntry, 0, func(w *world) {
			f := w.fencers[0]
			w.busy.Go(func() { f.exec(0, "REGISTER", 0, prOut(prRegisterAny, 0), prParam(0, f.key), nil) })
		}},
		{"its lease", pair.WaitsAnswer, 0, func(w *world) { // a read that ends when the lease is over
			w.busy.Go(func() { w.readBlock(w.fencers[0]) })
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			underLoad(t, setup{users: 1, workers: 2, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
				w.idleFencer(t, name(x.owner))
				if x.waits == pair.WaitsAnswer {
					slowReads(w, 0, time.Second) // 0.5 s at least, and 1.5 s at most
				}
				w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
				w.record.setAway(true)
				x.do(w)
				time.Sleep(1700 * time.Millisecond) // the lease is over, and the exclusion has begun
				if v, ok := w.nodes[0].view(); !ok || v.Phase != pair.Paired || v.Agreed || !v.Excluding {
					t.Errorf("the node is not where it should be: %+v", v)
				}
				if held := w.waiting(0); !slices.Contains(held, x.waits) {
					t.Errorf("commands wait for %q, and none for %q", held, x.waits)
				}
				if !w.stopAndWait(0) {
					t.Error("no process was running")
				}
				usualReads(w, 0)
				w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1)
				w.record.setAway(false)
			})
		})
	}
}

// A host that holds a RESERVE(6) reservation: the end of its session has to be written to the log,
// which no node can write then.
func TestStopWithAReservation(t *testing.T) {
	underLoad(t, setup{users: 1, workers: 1, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
		f := w.idleFencer(t, name(0))
		if !f.exec(0, "RESERVE(6)", 0, []byte{0x16, 5: 0}, nil, nil).ok {
			t.Fatal("it is not reserved")
		}
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
		w.record.setAway(true)
		time.Sleep(1200 * time.Millisecond)
		w.stopAndWait(0)
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1)
		w.record.setAway(false)
		if !w.await(recovery, func() bool { return f.exec(0, "RELEASE(6)", 0, []byte{0x17, 5: 0}, nil, nil).ok }) {
			t.Error("it is not released")
		}
	})
}

// The arbiter can be reached: the stop comes at each moment of the stretch between the first sign
// of silence and the exclusion.
func TestStopWithinAnExclusion(t *testing.T) {
	for d := 400 * time.Millisecond; d <= 1600*time.Millisecond; d += 150 * time.Millisecond {
		t.Run(d.String(), func(t *testing.T) {
			underLoad(t, setup{users: 1, workers: 2, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
				w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
				time.Sleep(d)
				w.stopAndWait(0)
				w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1)
			})
		})
	}
}

// A stop that its disk holds up ends all the same, within its bound, and says what it waited for.
func TestStopAlthoughTheDiskHangs(t *testing.T) {
	underLoad(t, setup{users: 1, workers: 2, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
		w.kill(1)
		w.nodes[1].freeze(4 * time.Second) // so that it does not come back at once
		if !w.await(5*time.Second, func() bool { v, ok := w.nodes[0].view(); return ok && v.Phase == pair.Alone && v.Serving }) {
			t.Fatal("the node is not alone")
		}
		l := w.nodes[0].running()
		w.nodes[0].disk.stick(30 * time.Second)
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		w.stopAndWait(0)
		<-l.done
		if took := time.Since(begun); !errors.Is(l.err, node.ErrStop) || took > stopBound {
			t.Errorf("%v after %v", l.err, took)
		} else if !strings.Contains(l.err.Error(), pair.WaitsStore) {
			t.Errorf("%v: it does not say what it waited for", l.err)
		}
		time.Sleep(30 * time.Second)
	})
}

// idleFencer makes a LUN that a node prefers, and a host of it that does nothing unasked.
func (w *world) idleFencer(t *testing.T, owner string) *fencer {
	rng := w.rand(20)
	l, err := w.caller.make(rng, "shared", owner, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	f := newFencer(w, 1, l, false, false)
	if err := w.caller.mapHost(rng, l, f.name); err != nil {
		t.Fatal(err)
	}
	w.shared, w.fencers = l, append(w.fencers, f)
	if !w.await(5*time.Second, func() bool { return w.readBlock(f).ok }) { // its path is known from here on (R11a)
		t.Fatal("the LUN cannot be read")
	}
	return f
}

// readBlock reads a block over node a.
func (w *world) readBlock(f *fencer) answer {
	return f.exec(0, "READ", 0, rw16(0x88, 0, blockSize/int(w.lunBlock)), nil, make([]byte, blockSize))
}

// A history in which a node does not start ends with what was wrong, and not with a crash.
func TestANodeThatNeverStarts(t *testing.T) {
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, nil)
		if err := os.WriteFile(w.nodes[1].dir, nil, 0o600); err != nil { // in place of its folder
			t.Fatal(err)
		}
		w.run("faults")
		if len(w.violations) != 1 || !strings.Contains(w.violations[0], "not a directory") {
			t.Errorf("%q", w.violations)
		}
	})
}
