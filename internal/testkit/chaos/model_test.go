package chaos

import (
	"errors"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// h makes histories: each call is one operation from start to end.
type h []porcupine.Operation

func (x h) op(client int, in register.Input, out uint64, start, end int64) h {
	return append(x, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: start, Return: end})
}

func (x h) write(client int, v uint64, start, end int64) h {
	return x.op(client, register.Input{Kind: register.Write, Value: v}, 0, start, end)
}

func (x h) maybe(client int, v uint64, start, end int64) h {
	return x.op(client, register.Input{Kind: register.Write, Value: v, Optional: true}, 0, start, end)
}

func (x h) read(client int, v uint64, start, end int64) h {
	return x.op(client, register.Input{Kind: register.Read}, v, start, end)
}

func TestSwapOps(t *testing.T) {
	in := register.Input{Kind: register.Swap, Expected: 5, Value: 6}
	tries := []attempt{{start: 0, maybe: true}, {start: 2}, {start: 4, good: true}}
	ops := swapOps(1, in, tries, nil, 9, false)
	if len(ops) != 2 || !ops[0].Input.(register.Input).Optional || ops[0].Return != 9 || ops[1].Input.(register.Input).Optional || ops[1].Output != uint64(1) || ops[1].Call != 4 {
		t.Errorf("answered: %+v", ops)
	}
	broken := errors.New("broken")
	if ops = swapOps(1, in, tries[:1], broken, 9, false); len(ops) != 1 || ops[0].Return != open || !ops[0].Input.(register.Input).Optional {
		t.Errorf("given up: %+v", ops)
	}
	if ops = swapOps(1, in, tries[:1], broken, 9, true); len(ops) != 1 || ops[0].Return != 9 {
		t.Errorf("refused for lack of space: %+v", ops)
	}
}

// A cut judges a window, and the next one begins with what it read.
func TestModelIsCutIntoWindows(t *testing.T) {
	r := newRecorder()
	k := key{0, 1}
	holds := uint64(0)
	cut := func() {
		t.Helper()
		if _, err := r.cut([]key{k}, func(key) (uint64, error) { return holds, nil }); err != nil {
			t.Fatal(err)
		}
	}
	r.add(k, h{}.write(1, 7, 0, 1)...)
	holds = 7
	cut()
	r.add(k, h{}.read(1, 7, r.now(), r.now()+1)...)
	r.add(k, h{}.maybe(1, 8, r.now(), open)...)
	holds = 8
	cut()
	if list, _, _ := r.found(); len(list) != 0 {
		t.Fatalf("anomalies in a good history: %v", list)
	}
	holds = 7 // back to what was before the cut
	cut()
	if list, _, _ := r.found(); len(list) != 1 {
		t.Fatalf("a value that came back after a cut gives %d anomalies", len(list))
	}
	broken := errors.New("broken")
	if _, err := r.cut([]key{k}, func(key) (uint64, error) { return 0, broken }); !errors.Is(err, errNoValue) || !errors.Is(err, broken) {
		t.Fatal(err)
	}
}

func TestBlocksOf(t *testing.T) {
	for _, size := range []int{512, 4096} {
		seen := map[int64]bool{}
		blocks := blocksOf(lunSize, size)
		if len(blocks) != hot+cold {
			t.Errorf("%d blocks", len(blocks))
		}
		for _, n := range blocks {
			if seen[n] || n < 0 || (n+1)*int64(size) > lunSize {
				t.Errorf("block %d of %d bytes", n, size)
			}
			seen[n] = true
		}
	}
}
