package register

import (
	"errors"
	"testing"

	"github.com/anishathalye/porcupine"
)

// h makes histories: each call is one operation from start to end.
type h []porcupine.Operation

func (x h) op(client int, in Input, out uint64, start, end int64) h {
	return append(x, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: start, Return: end})
}

func (x h) write(client int, v uint64, start, end int64) h {
	return x.op(client, Input{Kind: Write, Value: v}, 0, start, end)
}

func (x h) maybe(client int, v uint64, start, end int64) h {
	return x.op(client, Input{Kind: Write, Value: v, Optional: true}, 0, start, end)
}

func (x h) read(client int, v uint64, start, end int64) h {
	return x.op(client, Input{Kind: Read}, v, start, end)
}

func (x h) swap(client int, expected, v uint64, wrote uint64, start, end int64) h {
	return x.op(client, Input{Kind: Swap, Expected: expected, Value: v}, wrote, start, end)
}

func (x h) maybeSwap(client int, expected, v uint64, start, end int64) h {
	return x.op(client, Input{Kind: Swap, Expected: expected, Value: v, Optional: true}, 0, start, end)
}

func TestModelOfARegister(t *testing.T) {
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
		a := Check(5, c.ops)
		if (a == nil) != c.ok {
			t.Errorf("%s: %v", c.name, a)
		}
		if a != nil && (a.Lost != c.lost || a.Unknown || a.Text == "") {
			t.Errorf("%s: found lost %v, want %v: %v", c.name, a.Lost, c.lost, a)
		}
	}
}

func TestBlockContent(t *testing.T) {
	b := Fill(make([]byte, 512), 77)
	if v, err := Parse(b); v != 77 || err != nil {
		t.Fatal(v, err)
	}
	Fill(b[:256], 78)
	if _, err := Parse(b); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
}
