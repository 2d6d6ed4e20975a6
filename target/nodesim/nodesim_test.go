package nodesim

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTwoNodes(t *testing.T) {
	real := time.Now()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, t.Output())
		if err := w.startNodes(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * time.Second)
		_, saw := w.inSync()
		t.Log(saw, w.now())
		w.stopNodes()
		w.wg.Wait()
		if err := w.net.free(); err != nil {
			t.Error(err)
		}
	})
	t.Log(time.Since(real))
}
