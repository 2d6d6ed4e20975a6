package sim

// supervisor is what runs a node's process (the kubelet, systemd): one that has ended without a
// stop is started again after a back-off, which doubles as long as its lives are short. Nothing
// else starts a node that has left. The times are those of the kubelet (10 s to 5 min, forgotten
// after 10 min), made short as histories are.
type supervisor struct {
	ending bool  // the process has said that it will end
	due    int64 // it has ended, and starts then
	at     int64 // when it was started last
	delay  int64 // before it is started the next time
}

const (
	runDelayMin = 50 * ms
	runDelayMax = 2 * s
	runForget   = 4 * s
)

func (r *supervisor) started(now int64) { r.ending, r.at = false, now }

// ended gives the delay before the next start.
func (r *supervisor) ended(now int64) (d int64) {
	if r.delay == 0 || now-r.at > runForget {
		r.delay = runDelayMin
	}
	d = r.delay
	r.delay = min(2*d, runDelayMax)
	r.due = now + d
	return d
}

// over ends a process whose life is over (pair.Machine.Over): its hosts log out, its files are
// closed, or a disk that hangs has it end without. Sometimes its disk has been replaced by an empty
// one before it starts again, which nothing waits for.
func (h *host) over(why string) {
	if h.run.ending {
		return
	}
	h.run.ending = true
	w, life := h.w, h.life
	w.trace("node %v is over: %s", h.id, why)
	w.after(w.between(ms, 500*ms), func() {
		h.when(life, func() {
			w.mark(markOver)
			if h.run.delay > runDelayMin && w.now-h.run.at <= runForget {
				w.mark(markOverAgain)
			}
			h.kill(false)
			if h.disk.untrusted && w.chance(0.5) && w.spareable(h) {
				h.newDisk()
				h.errors = 0
			}
			w.after(h.run.ended(w.now), h.boot)
		})
	})
}
