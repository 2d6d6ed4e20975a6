package nodesim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/target/pair"
)

// A node that is told to stop while it can reach neither its peer nor the arbiter ends within the bounds of an orderly stop: the transfer
// of its LUNs cannot end.
func TestStopOfANodeThatIsCutOff(t *testing.T) {
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, nil)
		if err := w.startNodes(); err != nil {
			t.Fatal(err)
		}
		if !w.populate(w.rand(1), setup{users: 1, workers: 1, think: 10 * time.Millisecond}) {
			t.Fatal(w.violations)
		}
		time.Sleep(time.Second)
		w.alone(1, 1)
		w.record.set(func(r *record) { r.away = true })
		l := w.nodes[1].live()
		if v := l.n.View(); v.Phase != pair.Paired || !v.Agreed {
			t.Fatalf("%+v", v)
		}
		l.asked.Store(true)
		l.cancel()
		select {
		case <-l.done:
		case <-time.After(stopBound):
			t.Error("the stop does not end")
		}
		w.alone(1, -1)
		w.record.set(func(r *record) { r.away = false })
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

// The same with commands under way that wait for entries of the log, which do not come.
func TestStopWithChangesUnderWay(t *testing.T) {
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, nil)
		if err := w.startNodes(); err != nil {
			t.Fatal(err)
		}
		if !w.populate(w.rand(1), setup{users: 1, workers: 1, think: 10 * time.Millisecond, fencers: 2}) {
			t.Fatal(w.violations)
		}
		time.Sleep(time.Second)
		w.cutBoth(nodeAddr[0], nodeAddr[1], 1)
		w.record.set(func(r *record) { r.away = true })
		f := w.fencers[0]
		w.busy.Go(func() { f.exec(1, "REGISTER", 0, prOut(prRegisterAny, 0), prParam(0, f.key), nil) })
		time.Sleep(100 * time.Millisecond)
		l := w.nodes[1].live()
		l.asked.Store(true)
		l.cancel()
		select {
		case <-l.done:
		case <-time.After(stopBound):
			t.Error("the stop does not end")
			w.end(w.nodes[1], l)
		}
		w.cutBoth(nodeAddr[0], nodeAddr[1], -1)
		w.record.set(func(r *record) { r.away = false })
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
