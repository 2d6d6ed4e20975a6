package nodesim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A node that is asked to stop while it can reach neither its peer nor the arbiter ends within the
// bounds of an orderly stop: the transfer of its LUNs cannot end.
func TestStopOfANodeThatIsCutOff(t *testing.T) {
	underLoad(t, setup{users: 1, workers: 1, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
		w.alone(1, 1)
		w.record.setAway(true)
		if v, ok := w.nodes[1].view(); !ok || v.Phase != pair.Paired || !v.Agreed {
			t.Fatalf("%+v", v)
		}
		w.stopAndWait(1)
		w.alone(1, -1)
		w.record.setAway(false)
	})
}

// The same with commands under way that wait for entries of the log, which do not come.
func TestStopWithChangesUnderWay(t *testing.T) {
	underLoad(t, setup{users: 1, workers: 1, think: 10 * time.Millisecond, fencers: 2}, func(t *testing.T, w *world) {
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
		w.record.setAway(true)
		f := w.fencers[0]
		w.busy.Go(func() { f.exec(1, "REGISTER", 0, prOut(prRegisterAny, 0), prParam(0, f.key), nil) })
		time.Sleep(100 * time.Millisecond)
		if !w.stopAndWait(1) {
			t.Error("no process was running")
		}
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1)
		w.record.setAway(false)
	})
}

// underLoad runs f while hosts are at work, waits until both nodes serve again, and ends the
// history.
func underLoad(t *testing.T, s setup, f func(t *testing.T, w *world)) {
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, nil)
		if err := w.startNodes(); err != nil {
			t.Fatal(err)
		}
		if !w.populate(s) {
			t.Fatal(w.violations)
		}
		time.Sleep(time.Second)
		f(t, w)
		w.setQuiet()
		if !w.awaitSync() {
			t.Error("the node does not come back")
		}
		w.finish()
		for _, v := range w.violations {
			t.Error(v)
		}
	})
}
