package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
)

// Each command of a host is counted once where its host logged in, and once where it was executed.
func TestCommandsAreCountedByKindAndWay(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8<<20, "a")
	near, far := p.device(m, onlyBy(p, 0)), p.device(m, onlyBy(p, 1))
	work := func(i int) count.Totals {
		t.Helper()
		owner, x := p.nodes[i].Work(id)
		if owner != "a" {
			t.Errorf("node %d: the owner is %q", i, owner)
		}
		return x
	}
	before := [2]count.Totals{work(0), work(1)}
	const each, procs = 25, 4
	var wg sync.WaitGroup
	for i := range procs {
		for _, d := range []*initiator.Device{near, far} {
			wg.Go(func() {
				buf := make([]byte, 8<<10)
				for k := range each {
					off := int64(i*each+k) * int64(len(buf))
					if _, err := d.WriteAt(p.ctx, buf, off); err != nil {
						t.Error(err)
					}
					if _, err := d.ReadAt(p.ctx, buf[:4096], off); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	var d [2]count.Totals
	for i := range d {
		d[i] = work(i)
		d[i].Sub(&before[i])
	}
	const n = each * procs
	for _, c := range []struct {
		node  int
		kind  count.Kind
		way   count.Way
		class count.Class
		bytes uint64
	}{
		{0, count.Read, count.Own, count.Small, 4 << 10}, {0, count.Write, count.Own, count.Medium, 8 << 10},
		{0, count.Read, count.Remote, count.Small, 4 << 10}, {0, count.Write, count.Remote, count.Medium, 8 << 10},
		{1, count.Read, count.Forwarded, count.Small, 4 << 10}, {1, count.Write, count.Forwarded, count.Medium, 8 << 10},
	} {
		if x := d[c.node][c.kind][c.way]; x.Ops[c.class] != n || x.Count() != n || x.Bytes != n*c.bytes || x.Took <= 0 {
			t.Errorf("node %d, %v %v: %+v", c.node, c.kind, c.way, x)
		}
	}
	if d[0][count.Read][count.Forwarded].Count()+d[1][count.Read][count.Own].Count()+d[1][count.Read][count.Remote].Count() != 0 {
		t.Errorf("%+v", d)
	}
	_, text := p.get(0, "/metrics")
	for _, want := range []string{
		fmt.Sprintf(`gemel_lun_operations_total{kind="read",lun="%s",size="small",way="remote"} %d`, id, n),
		fmt.Sprintf(`gemel_lun_bytes_total{kind="write",lun="%s",way="own"} %d`, id, n*8<<10),
		fmt.Sprintf(`gemel_lun_info{lun="%s",name="lun-%s",volume="lun-%s"} 1`, id, id, id),
		fmt.Sprintf(`gemel_lun_duration_seconds_count{kind="write",lun="%s"} %d`, id, n),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// A host's reads and writes are counted for the host at the node at which it logged in, with the
// way that they took from there.
func TestReadsOfAHostAreCountedByWay(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8<<20, "a")
	const otherHost = testHost + "0"
	m2, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: otherHost})
	if err != nil {
		t.Fatal(err)
	}
	near, far, other := p.device(m, onlyBy(p, 0)), p.device(m, onlyBy(p, 1)), p.device(m2, onlyBy(p, 1))
	begun := p.nodes[0].boottime()
	buf := make([]byte, 4096)
	for _, x := range []struct {
		d     *initiator.Device
		reads int
	}{{near, 7}, {far, 5}, {other, 3}} {
		for i := range x.reads {
			if _, err := x.d.ReadAt(p.ctx, buf, int64(i)*4096); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := near.WriteAt(p.ctx, buf[:512], 0); err != nil {
		t.Fatal(err)
	}
	if err := near.Flush(p.ctx); err != nil { // neither reads nor writes
		t.Fatal(err)
	}
	// Mappings that change make another entry of the tables: the counters go on.
	if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: otherHost}); err != nil {
		t.Fatal(err)
	}
	want := [2][]count.Host{
		{{Name: testHost, Ops: [count.Ways]uint64{count.Own: 8}, Bytes: [count.Ways]uint64{count.Own: 7*4096 + 512}}},
		{{Name: testHost, Ops: [count.Ways]uint64{count.Forwarded: 5}, Bytes: [count.Ways]uint64{count.Forwarded: 5 * 4096}},
			{Name: otherHost, Ops: [count.Ways]uint64{count.Forwarded: 3}, Bytes: [count.Ways]uint64{count.Forwarded: 3 * 4096}}},
	}
	for i, n := range p.nodes {
		got := n.entryOf(id).hosts.Read()
		for k := range got {
			if last := got[k].Last; last < begun || last > n.boottime() {
				t.Errorf("node %d: the last command of %s came at %d, the test began at %d", i, got[k].Name, last, begun)
			}
			got[k].Last = 0
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("node %d: %+v\nwant %+v", i, got, want[i])
		}
	}
}

// However many LUNs there are, so many have series of their own; the rest is counted together.
func TestSeriesOfLUNsAreBounded(t *testing.T) {
	n := new(Node)
	all := &tables{units: map[pair.LUNID]*unitEntry{}}
	for i := range lunSeries + 50 {
		e := &unitEntry{id: pair.LUNID{byte(i >> 8), byte(i)}, lun: &meta.LUN{UUID: fmt.Sprintf("lun-%04d", i)}, counts: new(count.LUN), series: new(atomic.Bool)}
		all.units[e.id] = e
		e.counts.Add(count.Read, count.Own, 4096, 1000)
	}
	n.md.tables.Store(all)
	series := func() (named int, rest float64) {
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(lunCollector{n})
		fams, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fams {
			if f.GetName() != "gemel_lun_operations_total" {
				continue
			}
			for _, m := range f.Metric {
				if slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == otherLUNs }) {
					rest += m.Counter.GetValue()
				} else {
					named++
				}
			}
		}
		return named, rest
	}
	if named, rest := series(); named != lunSeries || rest != 50 {
		t.Errorf("%d LUNs have series, %v commands are in the rest", named, rest)
	}
	// One that has a series keeps it; one that is deleted gives its place to another.
	for id, e := range all.units {
		if e.series.Load() {
			delete(all.units, id)
			break
		}
	}
	if named, rest := series(); named != lunSeries || rest != 49 {
		t.Errorf("after a deletion %d LUNs have series, %v commands are in the rest", named, rest)
	}
}

type lunCollector struct{ n *Node }

func (c lunCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }
func (c lunCollector) Collect(ch chan<- prometheus.Metric) { c.n.collectLUNs(ch) }
