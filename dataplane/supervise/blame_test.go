package supervise

import (
	"fmt"
	"testing"
	"time"
)

// A process that crashes executing a command names the LUN, once. The partner hears that, and so
// does the next process, with what was heard from the other node, until it is forgiven.
func TestBlamesReachBothNodes(t *testing.T) {
	r := newRig(t, "blame:one hear:two stay")
	r.run()
	p := r.follow(nil)
	lives := r.lives(3)
	if len(lives[0].Blames) != 0 {
		t.Errorf("the first process was told of %+v", lives[0].Blames)
	}
	if b := lives[1].Blames; len(b) != 1 || b[0].LUN != "one" || b[0].Node != "a" || b[0].Nonce != lives[0].Nonce || b[0].Ago < 0 || b[0].Ago > 20*time.Second {
		t.Errorf("the second process was told of %+v", b)
	}
	if b := lives[2].Blames; len(b) != 2 || b[1].LUN != "two" || b[1].Node != "b" || b[1].Nonce != 7 || b[1].Ago < 30*time.Second || b[1].Ago > 50*time.Second {
		t.Errorf("the third process was told of %+v", b)
	}
	r.until("the partner knows of both", func() bool { return len(p.blames()) == 2 })
}

func TestForgivenBlamesAreNotTold(t *testing.T) {
	r := newRig(t, "blame:one forgive:one stay")
	r.run()
	if b := r.lives(3)[2].Blames; len(b) != 0 {
		t.Errorf("the third process was told of %+v", b)
	}
}

// A blame is remembered once, for a while, and not more of them than there is room for.
func TestBlamesAreBounded(t *testing.T) {
	b := &blames{}
	b.add(Blame{LUN: "old", Nonce: 1, Ago: BlameFor + time.Second})
	if got := b.now(); len(got) != 0 {
		t.Errorf("%+v is remembered", got)
	}
	for i := range 2 * maxBlames {
		for range 2 {
			b.add(Blame{LUN: fmt.Sprint(i), Nonce: 1})
		}
	}
	b.add(Blame{LUN: fmt.Sprint(2*maxBlames - 1), Nonce: 2})
	got := b.now()
	if len(got) != maxBlames || got[maxBlames-1].Nonce != 2 || got[maxBlames-2].LUN != got[maxBlames-1].LUN || got[0].LUN == got[1].LUN {
		t.Errorf("%+v", got)
	}
}

// Without a supervisor the calls do nothing.
func TestBlameWithoutSupervisor(t *testing.T) {
	for _, l := range []*Life{nil, {Nonce: 1}} {
		l.Blame("one")
		l.Heard(Blame{})
		l.Forgive("one")
	}
}
