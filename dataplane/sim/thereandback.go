package sim

// thereAndBackName: a LUN leaves its owner while that flushes it for a checkpoint, and is back
// before the flush has ended. Neither transfer waits for the flush (R10), and the next checkpoint
// of the LUN begins while it is under way. When bits have been taken back the owner loses power.
const thereAndBackName = "there and back during a checkpoint"

func (w *world) thereAndBack() bool {
	if !w.well() {
		return false
	}
	h := w.any()
	if first, _ := h.m.Owner(w.luns[0]); first != h.id && len(w.luns) == 1 {
		h = w.nodes[first]
	}
	owns := func(h *host, lun int) bool {
		o, has := h.m.Owner(w.luns[lun])
		return has && o == h.id
	}
	h.atFlush = func(lun int) {
		h.slow = w.even(100*ms, 500*ms) // of this flush, and of the next checkpoint's
		w.after(0, func() { h.slow = 0 })
		var look func()
		look = func() {
			switch {
			case w.healed || !w.well():
			case owns(h, lun):
				w.mark(markThereAndBack)
				h.atFlush = func(int) {
					h.slow = w.even(100*ms, 900*ms)
					w.after(0, func() { h.slow = 0 })
				}
				h.atClear = func() { w.after(w.even(0, 5*ms), func() { w.crash(h, true) }) }
			default:
				w.after(ms, look)
			}
		}
		back := func() {
			if !w.healed && w.well() && !owns(h, lun) {
				w.transfer(lun)
				look()
			}
		}
		w.transfer(lun)
		w.after(w.even(10*ms, 80*ms), back)
	}
	return w.until(s, 3*s, func() { h.atFlush, h.atClear = nil, nil })
}
