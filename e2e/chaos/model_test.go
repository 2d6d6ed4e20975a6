package chaos

import (
	"errors"
	"testing"

	"github.com/anishathalye/porcupine"
)

// h makes histories: each call is one operation from start to end.
type h []porcupine.Operation

func (x h) op(client int, in input, out uint64, start, end int64) h {
	return append(x, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: start, Return: end})
}

func (x h) write(client int, v uint64, start, end int64) h {
	return x.op(client, input{kind: opWrite, value: v}, 0, start, end)
}

func (x h) maybe(client int, v uint64, start, end int64) h {
	return x.op(client, input{kind: opWrite, value: v, optional: true}, 0, start, end)
}

func (x h) read(client int, v uint64, start, end int64) h {
	return x.op(client, input{kind: opRead}, v, start, end)
}

func (x h) swap(client int, expected, v uint64, wrote uint64, start, end int64) h {
	return x.op(client, input{kind: opSwap, expected: expected, value: v}, wrote, start, end)
}

func (x h) maybeSwap(client int, expected, v uint64, start, end int64) h {
	return x.op(client, input{kind: opSwap, expected: expected, value: v, optional: true}, 0, start, end)
}

func TestModel(t *testing.T) {
	for _, c := range []struct {
		name     string
		ops      h
		ok, lost bool
	}{
		{"nothing written", h{}.read(1, 5, 0, 1), true, false}, // 5 is what it held at first
		{"read back", h{}.write(1, 7, 0, 1).read(2, 7, 2, 3), true, false},
		{"a lost write", h{}.write(1, 7, 0, 1).write(1, 8, 2, 3).read(2, 7, 4, 5), false, true},
		{"a write lost to what was there first", h{}.write(1, 7, 0, 1).read(2, 5, 2, 3), false, false},
		{"a read undone", h{}.write(1, 7, 0, 9).read(2, 7, 1, 2).read(2, 5, 3, 4), false, false},
		{"a value of nobody", h{}.write(1, 7, 0, 1).read(2, 99, 2, 3), false, false},
		{"two at once, either order", h{}.write(1, 7, 0, 5).write(2, 8, 0, 5).read(3, 7, 6, 7), true, false},
		{"but one order", h{}.write(1, 7, 0, 5).write(2, 8, 0, 5).read(3, 7, 6, 7).read(3, 8, 8, 9), false, false},
		{"a retry that wrote again before it returned", h{}.write(1, 7, 0, 10).maybe(1, 7, 0, 10).write(2, 8, 4, 5).read(3, 7, 6, 7), true, false},
		{"twice, each seen", h{}.write(1, 7, 0, 10).maybe(1, 7, 0, 10).read(3, 7, 1, 2).write(2, 8, 4, 5).read(3, 7, 6, 7), true, false},
		{"and the same without a retry", h{}.write(1, 7, 0, 10).read(3, 7, 1, 2).write(2, 8, 4, 5).read(3, 7, 6, 7), false, false},
		{"a straggler after the return", h{}.write(1, 7, 0, 3).maybe(1, 7, 0, 3).write(2, 8, 4, 5).read(3, 7, 6, 7), false, true},
		{"a refused write, absent", h{}.maybe(1, 7, 0, 3).read(2, 5, 4, 5), true, false},
		{"a refused write, there", h{}.maybe(1, 7, 0, 3).read(2, 7, 4, 5), true, false},
		{"a refused write that comes and goes", h{}.maybe(1, 7, 0, 3).read(2, 7, 4, 5).read(2, 5, 6, 7), false, false},
		{"a swap", h{}.swap(1, 5, 6, 1, 0, 1).read(2, 6, 2, 3), true, false},
		{"a swap that had to fail", h{}.write(2, 9, 0, 1).swap(1, 5, 6, 1, 2, 3), false, false},
		{"a swap that had to succeed", h{}.swap(1, 5, 6, 0, 0, 1), false, false},
		{"both of two swaps of one value", h{}.swap(1, 5, 6, 1, 0, 4).swap(2, 5, 7, 1, 0, 4), false, false},
		{"a swap whose retry finds its own value", h{}.maybeSwap(1, 5, 6, 0, 4).swap(1, 5, 6, 0, 2, 4).read(2, 6, 5, 6), true, false},
		{"a swap lost", h{}.swap(1, 5, 6, 1, 0, 1).read(2, 5, 2, 3), false, false},
		{"a swap lost to a write", h{}.write(1, 7, 0, 1).swap(1, 7, 8, 1, 2, 3).read(2, 7, 4, 5), false, true},
	} {
		a := check(key{}, 5, c.ops)
		if (a == nil) != c.ok {
			t.Errorf("%s: %v", c.name, a)
		}
		if a != nil && (a.lost != c.lost || a.unknown || a.text == "") {
			t.Errorf("%s: found lost %v, want %v: %v", c.name, a.lost, c.lost, a)
		}
	}
}

func TestSwapOps(t *testing.T) {
	in := input{kind: opSwap, expected: 5, value: 6}
	tries := []attempt{{start: 0, maybe: true}, {start: 2}, {start: 4, good: true}}
	ops := swapOps(1, in, tries, nil, 9, false)
	if len(ops) != 2 || !ops[0].Input.(input).optional || ops[0].Return != 9 || ops[1].Input.(input).optional || ops[1].Output != uint64(1) || ops[1].Call != 4 {
		t.Errorf("answered: %+v", ops)
	}
	broken := errors.New("broken")
	if ops = swapOps(1, in, tries[:1], broken, 9, false); len(ops) != 1 || ops[0].Return != open || !ops[0].Input.(input).optional {
		t.Errorf("given up: %+v", ops)
	}
	if ops = swapOps(1, in, tries[:1], broken, 9, true); len(ops) != 1 || ops[0].Return != 9 {
		t.Errorf("refused for lack of space: %+v", ops)
	}
}

// A cut judges a window, and the next one begins with what it read.
func TestCut(t *testing.T) {
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

func TestBlockContent(t *testing.T) {
	b := fill(make([]byte, 512), 77)
	if v, err := parse(b); v != 77 || err != nil {
		t.Fatal(v, err)
	}
	fill(b[:256], 78)
	if _, err := parse(b); !errors.Is(err, errTorn) {
		t.Fatal(err)
	}
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
