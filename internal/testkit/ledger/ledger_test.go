package ledger

import (
	"strings"
	"testing"
)

func block(volume, n, seq uint64) []byte {
	p := make([]byte, BlockSize)
	Fill(p, volume, n, seq)
	return p
}

func TestWhatABlockMayContain(t *testing.T) {
	const vol = 7
	l := New(vol, 2, 4)
	l.Submit(2, 1)
	l.Ack(2, 1)
	l.Submit(2, 2)
	l.Ack(2, 2)
	l.Submit(2, 5) // not acknowledged
	torn := block(vol, 2, 2)
	copy(torn[2048:crcAt], block(vol, 2, 1)[2048:crcAt])
	for name, c := range map[string]struct {
		content []byte
		want    string // start of the verdict
	}{
		"acknowledged":             {block(vol, 2, 2), ""},
		"later, unacknowledged":    {block(vol, 2, 5), ""},
		"stale":                    {block(vol, 2, 1), "stale"},
		"lost":                     {make([]byte, BlockSize), "empty"},
		"torn":                     {torn, "torn"},
		"of another block":         {block(vol, 3, 2), "misplaced"},
		"of another volume":        {block(vol+1, 2, 2), "misplaced"},
		"something else":           {[]byte(strings.Repeat("x", BlockSize)), "foreign"},
		"short":                    {make([]byte, 10), "short"},
		"never submitted":          {block(vol, 2, 9), "write 9, which was never"},
		"between, never submitted": {block(vol, 2, 4), "write 4, which was never"},
	} {
		got := l.Check(2, c.content)
		if (c.want == "") != (got == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: verdict %q, want %q", name, got, c.want)
		}
	}
	if v := l.Check(0, make([]byte, BlockSize)); v != "" {
		t.Errorf("a block never written: %q", v)
	}
	if l.Acked() != 2 || l.Written() != 1 {
		t.Errorf("acked %d, written %d", l.Acked(), l.Written())
	}
	// Once acknowledged, an older write that had failed must not come back.
	l.Submit(2, 6)
	l.Ack(2, 6)
	if v := l.Check(2, block(vol, 2, 5)); !strings.HasPrefix(v, "stale") {
		t.Errorf("abandoned write that landed late: %q", v)
	}
}

func TestEveryByteCounts(t *testing.T) {
	l := New(1, 1, 1)
	l.Submit(0, 1)
	l.Ack(0, 1)
	p := block(1, 0, 1)
	for i := range p {
		p[i] ^= 1
		if l.Check(0, p) == "" {
			t.Fatalf("a flipped bit in byte %d is not noticed", i)
		}
		p[i] ^= 1
	}
}

// snapshotRun makes a ledger of two workers; worker 0 writes blocks 0, 2, worker 1 writes block 1,
// in a known order.
func snapshotRun() *Moment {
	l := New(1, 2, 3)
	w := func(b int, s uint64) { l.Submit(b, s); l.Ack(b, s) }
	w(0, 1)
	w(2, 2)
	w(1, 1)
	l.Submit(0, 3) // under way at the beginning
	l.Begin()
	l.Ack(0, 3)
	w(1, 2)
	w(2, 4)
	w(1, 3)
	l.Submit(0, 5) // under way at the end
	return l.End()
}

func TestSnapshotShowsOneMoment(t *testing.T) {
	m := snapshotRun()
	for name, c := range map[string]struct {
		seen []uint64
		ok   bool
	}{
		"at the beginning":                         {[]uint64{1, 1, 2}, true},
		"the write under way is in":                {[]uint64{3, 1, 2}, true},
		"one more":                                 {[]uint64{3, 2, 2}, true},
		"two more":                                 {[]uint64{3, 2, 4}, true},
		"at the end":                               {[]uint64{3, 3, 4}, true},
		"with the one under way at the end":        {[]uint64{5, 3, 4}, true},
		"lost what had been acknowledged":          {[]uint64{1, 1, 0}, false},
		"of one worker the later without earlier":  {[]uint64{1, 2, 4}, false},
		"of two workers the later without earlier": {[]uint64{3, 1, 4}, false},
		"never written":                            {[]uint64{3, 9, 4}, false},
		"a block is short":                         {[]uint64{3, 3}, false},
	} {
		if err := m.Check(c.seen); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
