package sim

// event is something that will happen at a moment; seq keeps those of one moment in the order they
// were planned.
type event struct {
	at  int64
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// queue is a binary heap of events. container/heap would box each of them.
type queue []event

func (q *queue) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 2
		if !e.before(&h[p]) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = e
	*q = h
}

func (q *queue) pop() event {
	h := *q
	top := h[0]
	n := len(h) - 1
	e := h[n]
	h[n] = event{}
	h = h[:n]
	for i := 0; n > 0; {
		c := 2*i + 1
		if c >= n {
			h[i] = e
			break
		}
		if c+1 < n && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&e) {
			h[i] = e
			break
		}
		h[i] = h[c]
		i = c
	}
	*q = h
	return top
}
