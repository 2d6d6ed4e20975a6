package scsi

import (
	"slices"
	"testing"
)

type noting struct {
	name string
	to   *[]string
}

func (n *noting) Send() { *n.to = append(*n.to, n.name) }

func TestOutboxSendsEachOnceInOrder(t *testing.T) {
	var sent []string
	a, b := &noting{"a", &sent}, &noting{"b", &sent}
	o := new(Outbox)
	for _, s := range []*noting{a, b, a, a, b} {
		o.Leave(s)
	}
	if o.SendAt(6); len(sent) > 0 {
		t.Errorf("%q are sent before there are six", sent)
	}
	if o.SendAt(5); !slices.Equal(sent, []string{"a", "b"}) {
		t.Errorf("sent %q", sent)
	}
	if o.Send(); len(sent) != 2 {
		t.Errorf("what was sent is sent again: %q", sent)
	}
	o.Leave(b)
	if o.Send(); !slices.Equal(sent, []string{"a", "b", "b"}) {
		t.Errorf("sent %q", sent)
	}
	if n := testing.AllocsPerRun(100, func() { o.Leave(a); o.Send() }); n > 1 { // one of them is of the list of this test
		t.Errorf("%v allocations", n)
	}
}

func TestNoOutboxKeepsNothing(t *testing.T) {
	var sent []string
	var o *Outbox
	o.Leave(&noting{"a", &sent})
	o.SendAt(1)
	o.Send()
	if !slices.Equal(sent, []string{"a"}) {
		t.Errorf("sent %q", sent)
	}
}
