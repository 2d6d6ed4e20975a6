package sim

// planFaults draws the faults of a history: a few kinds of them ("swarm"), several times each. Never both nodes lose
// power: unflushed writes may go then, which is promised to nobody.
func (w *world) planFaults() {
	kinds := []struct {
		name string
		do   func()
	}{
		{"kill", func() { w.crash(false) }},
		{"power", func() { w.crash(true) }},
		{"stop", func() { w.nodes[w.rnd.IntN(2)].freeze(w.between(50*ms, 4*s)) }},
		{"partition", func() { w.partition(true, true) }},
		{"one way", func() { b := w.chance(0.5); w.partition(b, !b) }},
		{"link reset", func() { w.net.drop("reset") }},
		{"slow link", func() {
			w.net.slow = w.between(ms, 300*ms)
			w.after(w.between(100*ms, s), func() { w.net.slow = 0 })
		}},
		{"slow disk", func() {
			h := w.nodes[w.rnd.IntN(2)]
			h.slow = w.between(ms, 500*ms)
			w.after(w.between(100*ms, s), func() { h.slow = 0 })
		}},
		{"full disk", func() {
			h := w.nodes[w.rnd.IntN(2)]
			h.full = true
			w.after(w.between(100*ms, 2*s), func() { h.full = false })
		}},
		{"arbiter down", func() {
			w.arb.down = true
			w.after(w.between(200*ms, 3*s), func() { w.arb.down = false })
		}},
		{"arbiter flaky", func() {
			w.arb.flaky = true
			w.after(w.between(200*ms, 3*s), func() { w.arb.flaky = false })
		}},
		{"both killed", func() {
			for _, h := range w.nodes {
				h := h
				h.kill(false)
				w.after(w.between(10*ms, s), h.boot)
			}
		}},
		{"session lost", func() {
			for _, c := range w.clients {
				if c.cur != nil && w.chance(0.5) {
					c.giveUp()
				}
			}
		}},
	}
	transfers := 2 + w.rnd.IntN(8)
	for range transfers {
		lun := w.rnd.IntN(w.cfg.LUNs)
		w.after(w.rnd.Int64N(int64(w.cfg.Length)), func() {
			for _, h := range w.nodes {
				if h.m != nil {
					if o, _ := h.m.Owner(w.luns[lun]); o == h.id {
						w.res.Faults["transfer"]++
						h.transfer(lun)
						return
					}
				}
			}
		})
	}
	w.rnd.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for _, k := range kinds[:1+w.rnd.IntN(4)] {
		for range 1 + w.rnd.IntN(4) {
			w.after(s/2+w.rnd.Int64N(int64(w.cfg.Length)-s/2), func() {
				if !w.healed {
					w.res.Faults[k.name]++
					w.trace("FAULT %s", k.name)
					k.do()
				}
			})
		}
	}
}

// crash ends a node. Power is cut only while the other one lives and has what is acknowledged.
func (w *world) crash(power bool) {
	h := w.nodes[w.rnd.IntN(2)]
	if power && w.nodes[h.id.Peer()].boots > 0 {
		power = false // one power cut a history, on one node
	}
	h.kill(power)
	w.after(w.between(20*ms, 3*s), func() {
		if h.m == nil {
			h.boot()
		}
	})
}

func (w *world) partition(ab, ba bool) {
	w.net.cut[0] = w.net.cut[0] || ab
	w.net.cut[1] = w.net.cut[1] || ba
	w.after(w.between(50*ms, 3*s), func() {
		if ab {
			w.net.uncut(0)
		}
		if ba {
			w.net.uncut(1)
		}
	})
}
