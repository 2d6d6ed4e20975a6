package main

import "testing"

// good are results within every limit.
func good() *results {
	return &results{Idle: usage{WritesPS: 2, Cores: 0.3}, DetachAttachS: 60, DelayBesideS: 1, SpreadPercent: 10, Refused: 1}
}

func TestEveryLimitIsHeld(t *testing.T) {
	if code, err := good().check(); code != 0 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	for name, change := range map[string]func(*results){
		"writes": func(r *results) { r.Idle.WritesPS = 2.1 }, "cores": func(r *results) { r.Idle.Cores = 0.31 }, "moves": func(r *results) { r.DetachAttachS = 61 },
		"delay": func(r *results) { r.DelayBesideS = 1.1 }, "lists": func(r *results) { r.FullLists = 1 }, "spread": func(r *results) { r.SpreadPercent = 11 }, "refused": func(r *results) { r.Refused = 0 },
	} {
		r := good()
		change(r)
		if code, _ := r.check(); code == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
}
