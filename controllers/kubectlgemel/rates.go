package kubectlgemel

import (
	"cmp"
	"context"
	"fmt"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// sample is what one node has counted at one instant.
type sample struct {
	pair, node  string
	err         error
	incarnation uint64
	at          time.Duration
	luns        map[string]*targetv1.LUNWork
	order       []string
	decides     *targetv1.Ownership // nil: this node does not decide who owns what, or does not tell
}

// readDecisions asks a node what it knows of the use of both nodes. A node of 0.1.0 knows nothing.
func (s *sample) readDecisions(ctx context.Context, n *nodes) {
	c, err := n.get(ctx, s.node)
	if err != nil {
		return
	}
	if st, err := c.GetStatus(ctx, &targetv1.GetStatusRequest{}); err == nil && st.Ownership.GetDecides() {
		s.decides = st.Ownership
	}
}

func (s *sample) read(ctx context.Context, n *nodes) error {
	c, err := n.get(ctx, s.node)
	if err != nil {
		return err
	}
	s.luns = map[string]*targetv1.LUNWork{}
	for after := ""; ; {
		r, err := c.GetWork(ctx, &targetv1.GetWorkRequest{AfterUuid: after})
		if err != nil {
			return err
		}
		if after == "" {
			s.at, s.incarnation = time.Duration(r.AtUs)*time.Microsecond, r.Incarnation
		} else if r.Incarnation != s.incarnation {
			return fmt.Errorf("it was started again while it was read")
		}
		for _, l := range r.Luns {
			s.luns[l.Uuid] = l
			s.order = append(s.order, l.Uuid)
		}
		if after = r.NextAfterUuid; after == "" {
			return nil
		}
	}
}

// rate is what was counted within a time.
type rate struct {
	time                     time.Duration
	reads, writes, others    uint64 // commands of hosts that logged in at the node
	executed                 uint64 // commands that the node executed, its own hosts' and those of the other node
	bytes, forwarded, tookUs uint64 // forwarded: bytes
	histogram                []uint64
}

// delta is the rate of one LUN at one node.
type delta struct {
	uuid, name, owner string
	rate
}

// since lists what each LUN had between two samples of a node. If the node was started again
// meanwhile, that is everything since its start.
func (s *sample) since(before *sample) (out []delta) {
	for _, id := range s.order {
		l := s.luns[id]
		d := delta{uuid: id, name: l.Name, owner: l.Owner, rate: rate{time: s.at - before.at}}
		var old *targetv1.LUNWork
		if s.incarnation == before.incarnation {
			old = before.luns[id]
		}
		for _, w := range l.Work {
			d.count(w, old)
		}
		out = append(out, d)
	}
	return out
}

// count adds what a counter has more than it had.
func (d *delta) count(w *targetv1.Work, old *targetv1.LUNWork) {
	was := &targetv1.Work{}
	for _, o := range old.GetWork() {
		if o.Kind == w.Kind && o.Way == w.Way {
			was = o
		}
	}
	n := less(w.Operations, was.Operations)
	if w.Way != "forwarded" {
		d.executed += n
	}
	if w.Way == "remote" {
		return // counted where its host logged in
	}
	switch w.Kind {
	case "read":
		d.reads += n
	case "write":
		d.writes += n
	default:
		d.others += n
	}
	bytes := less(w.Bytes, was.Bytes)
	d.bytes += bytes
	if w.Way == "forwarded" {
		d.forwarded += bytes
	}
	d.tookUs += less(w.TookUs, was.TookUs)
	for i, x := range w.Histogram {
		if i >= len(d.histogram) {
			d.histogram = append(d.histogram, 0)
		}
		if i < len(was.Histogram) {
			x = less(x, was.Histogram[i])
		}
		d.histogram[i] += x
	}
}

// less is x-y, and 0 if a counter that is read while it is counted seems to go back.
func less(x, y uint64) uint64 { return x - min(x, y) }

// key is the row that a delta belongs to; wholes has the striped volumes of LUNs.
func (d *delta) key(of string, s *sample, wholes map[string]string) (string, *row) {
	switch of {
	case "volumes":
		name := cmp.Or(wholes[d.name], d.name)
		return s.pair + "/" + name, &row{name: name, pair: s.pair}
	case "luns":
		return s.pair + "/" + d.uuid, &row{name: d.name, pair: s.pair}
	case "nodes":
		return s.pair + "/" + s.node, &row{name: s.node, pair: s.pair}
	}
	return s.pair, &row{pair: s.pair}
}

func (r *rate) add(o *rate) {
	r.time = max(r.time, o.time)
	r.reads += o.reads
	r.writes += o.writes
	r.others += o.others
	r.executed += o.executed
	r.bytes += o.bytes
	r.forwarded += o.forwarded
	r.tookUs += o.tookUs
	for i, x := range o.histogram {
		if i >= len(r.histogram) {
			r.histogram = append(r.histogram, 0)
		}
		r.histogram[i] += x
	}
}

func (r *rate) commands() uint64 { return r.reads + r.writes + r.others }

func (r *rate) perSecond(n uint64) float64 {
	if r.time <= 0 {
		return 0
	}
	return float64(n) / r.time.Seconds()
}

func (r *rate) mean() time.Duration {
	if n := r.commands(); n > 0 {
		return time.Duration(r.tookUs/n) * time.Microsecond
	}
	return 0
}

func (r *rate) share() float64 {
	if r.bytes == 0 {
		return 0
	}
	return float64(r.forwarded) / float64(r.bytes)
}

func (r *rate) by(sort string) float64 {
	switch sort {
	case "bytes":
		return r.perSecond(r.bytes)
	case "latency":
		return r.mean().Seconds()
	case "forwarded":
		return r.share()
	}
	return r.perSecond(r.commands())
}

func (r *rate) forwardedText() string {
	if r.bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*r.share())
}

// firstBound of the histogram; each bound is twice the one before (Work.histogram).
const firstBound = 32 * time.Microsecond

// limit is the bound of the histogram under which a share of the times are.
func (r *rate) limit(q float64) string {
	n := uint64(0)
	for _, x := range r.histogram {
		n += x
	}
	if n == 0 {
		return "-"
	}
	need, sum := uint64(q*float64(n)+0.999999), uint64(0)
	for i, x := range r.histogram {
		if sum += x; sum >= need {
			if i == len(r.histogram)-1 {
				return ">" + short3(firstBound<<(i-1))
			}
			return "<" + short3(firstBound<<i)
		}
	}
	return "-"
}

// short3 is a duration with three digits.
func short3(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%.0fms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.2fs", d.Seconds())
}
