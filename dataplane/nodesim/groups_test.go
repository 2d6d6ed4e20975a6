package nodesim

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// While it is open for a short time whether node b serves alone, it does not tell hosts of a
// transition: Linux would not send anything for two seconds. When it takes longer, it does.
func TestShortTransitionIsNotTold(t *testing.T) {
	underLoad(t, setup{users: 1, workers: 1, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
		f := w.idleFencer(t, "a")
		if s := w.groupOf(t, f, 1); s != alua.NonOptimized {
			t.Fatalf("node b: %v", s)
		}
		w.record.setAway(true) // so that it stays open
		w.kill(0)
		begun := time.Now()
		told := map[alua.State]time.Duration{}
		for since := time.Duration(0); since < 8*time.Second; since = time.Since(begun) {
			s := w.groupOf(t, f, 1)
			if _, seen := told[s]; !seen {
				told[s] = since
			}
			time.Sleep(50 * time.Millisecond)
		}
		if at, ok := told[alua.Transitioning]; !ok || at < 2500*time.Millisecond || at > 4*time.Second {
			t.Errorf("states of node b by the time that they were first told: %v", told)
		}
		if at, ok := told[alua.Unavailable]; !ok || at < 5*time.Second || told[alua.NonOptimized] != 0 {
			t.Errorf("states of node b by the time that they were first told: %v", told)
		}
		w.record.setAway(false)
		if !w.await(20*time.Second, func() bool { return w.groupOf(t, f, 1) == alua.Optimized }) {
			t.Error("node b does not serve")
		}
	})
}

// groupOf asks a node for the state of its own target port group.
func (w *world) groupOf(t *testing.T, f *fencer, i int) alua.State {
	t.Helper()
	var in [256]byte
	a := f.exec(i, "REPORT TARGET PORT GROUPS", 0, []byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, byte(len(in) - 1), 0, 0, 0}, nil, in[:])
	for at := 4; a.ok && at+8 <= a.got; at += 8 + 4*int(in[at+7]) {
		if tag := int(in[at+2])<<8 | int(in[at+3]); tag == i+1 {
			return alua.State(in[at] & 0xf)
		}
	}
	t.Logf("node %s: %+v", name(i), a)
	return 0xe // offline: no answer
}
