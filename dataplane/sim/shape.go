package sim

// shape is what a seed draws before the first event: how much there is of everything. Histories
// that differ in shape find more than histories that are all alike ("swarm"): a bug that needs few
// blocks and many writes is not met by an average.
type shape struct {
	length, think int64
	clients       int
	blocks, luns  int
	write, fua    float64 // shares of the operations
	flush, swap   float64
	wide, zero    float64 // of the writes: several blocks; UNMAP
	astray        float64 // a host takes the other path without need
	late          float64 // frames that wait for the socket
	impatient     float64 // commands whose host gives them up soon
	mirrorMax     int64   // Dm
	kinds         int     // of faults
	region        int64   // blocks of a write-intent bit
	ckptIdle      int64   // quiet before a checkpoint
	pagesStay     bool    // pages whose writeback failed may stay in the cache over a restart (R12)
	scrubs        int
	group         int  // blocks that one checksum is of
	sums          bool // disks keep checksums
	lone          bool // blocks rot where there is no good copy, and stay so (rot.go)
	flips         bool // blocks change behind a node's back, before a scrub
}

func (w *world) draw() shape {
	r := w.rnd
	p := shape{length: w.even(1500*ms, 4500*ms), think: []int64{10 * ms, 30 * ms, 60 * ms}[r.IntN(3)],
		clients: 2 + r.IntN(3), blocks: 2 + r.IntN(4), luns: 1 + r.IntN(2),
		write: 0.3 + 0.5*r.Float64(), fua: 0.2 * r.Float64(), flush: 0.08 * r.Float64(),
		swap: 0.25 * r.Float64(), wide: 0.3 * r.Float64(), zero: 0.1 * r.Float64(), astray: 0.1 * r.Float64(),
		late: 0.3 * r.Float64(), mirrorMax: []int64{s, 5 * s}[r.IntN(2)], kinds: 2 + r.IntN(4), region: int64(1 + r.IntN(2)), ckptIdle: []int64{5 * ms, 30 * ms, 200 * ms}[r.IntN(3)]}
	p.pagesStay, p.flips = w.chance(0.5), w.chance(0.3)
	p.scrubs = r.IntN(4)
	w.rotting(func() { p.group, p.sums = 1+w.rnd.IntN(int(p.region)), w.chance(0.9) })
	if w.chance(0.3) {
		p.swap = 0.8
	}
	if w.chance(0.5) {
		p.impatient = 0.15 * r.Float64()
	}
	if w.busy() { // enough hosts to fill the window
		p.clients, p.blocks, p.mirrorMax, p.write = p.clients+8, p.blocks+8, s, max(p.write, 0.6)
	}
	if w.cfg.Plain {
		p.group, p.sums = 1, false
	}
	p.lone = p.sums && w.lonely()
	if w.remote() { // time for some round trips
		p.length *= 2
	}
	if w.cfg.Length > 0 {
		p.length = int64(w.cfg.Length)
	}
	if w.cfg.Clients > 0 {
		p.clients = w.cfg.Clients
	}
	if w.cfg.Blocks > 0 {
		p.blocks = w.cfg.Blocks
	}
	if w.cfg.LUNs > 0 {
		p.luns = w.cfg.LUNs
	}
	return p
}
