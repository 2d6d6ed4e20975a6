package count

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func hostName(i int) string { return fmt.Sprintf("iqn.2026-11.storage.gemel.test:host%03d", i) }

const second = int64(time.Second)

// No count of a host is lost, however many goroutines count at once, its first command included.
func TestCountsOfHostsAreExact(t *testing.T) {
	var h Hosts
	var wg sync.WaitGroup
	const hosts, procs, each = 5, 8, 6000
	for p := range procs {
		wg.Go(func() {
			for i := range each {
				h.Add(hostName((i+p)%hosts), int64(i%2)*4096, Way(i%3%2), int64(i)*second)
			}
		})
	}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				h.Read()
			}
		}
	})
	wg.Wait()
	close(stop)
	reader.Wait()
	var want [hosts]Host
	for p := range procs {
		for i := range each {
			x := &want[(i+p)%hosts]
			x.Name = hostName((i + p) % hosts)
			x.Ops[i%3%2]++
			x.Bytes[i%3%2] += uint64(i%2) * 4096
		}
	}
	got := h.Read()
	for i := range got {
		if got[i].Last < 0 || got[i].Last >= each*second {
			t.Errorf("%s: the last command came at %d", got[i].Name, got[i].Last)
		}
		got[i].Last = 0
	}
	if !slices.Equal(got, want[:]) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// The last command of a host is known to 100 ms, and is never set back.
func TestLastCommandOfAHost(t *testing.T) {
	var h Hosts
	const ms = int64(time.Millisecond)
	for _, c := range []struct{ now, want int64 }{
		{5 * ms, 5 * ms}, {104 * ms, 5 * ms}, {105 * ms, 105 * ms}, {90 * ms, 105 * ms}, {second, second}, {300 * ms, second},
	} {
		h.Add("a", 1, Own, c.now)
		if last := h.Read()[0].Last; last != c.want {
			t.Errorf("at %d ms the last command was at %d ms, want %d", c.now/ms, last/ms, c.want/ms)
		}
	}
}

// A host beyond the bound takes the place of the host that was silent the longest.
func TestHostsBeyondTheBoundReplaceTheOldest(t *testing.T) {
	var h Hosts
	for i := range MaxHosts {
		h.Add(hostName(i), 512, Own, int64(i+1)*second)
	}
	h.Add(hostName(0), 512, Forwarded, 100*second) // host 1 is the oldest now
	for i := range 3 {
		h.Add(hostName(500-i), 512, Own, int64(200+i)*second)
	}
	all := h.Read()
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = x.Name
	}
	want := []string{hostName(0)}
	for i := 4; i < MaxHosts; i++ {
		want = append(want, hostName(i))
	}
	want = append(want, hostName(498), hostName(499), hostName(500))
	if !slices.Equal(names, want) {
		t.Errorf("hosts %v\nwant %v", names, want)
	}
	if x := all[0]; x.Ops != [Ways]uint64{Own: 1, Forwarded: 1} || x.Last != 100*second {
		t.Errorf("host 0 was not replaced, but has %+v", x)
	}
	h.Add(hostName(1), 512, Own, 300*second)
	at := slices.IndexFunc(h.Read(), func(x Host) bool { return x.Name == hostName(1) })
	if at < 0 || h.Read()[at].Ops[Own] != 1 {
		t.Errorf("a host that comes back starts from zero: %+v", h.Read())
	}
}

// However many hosts come at once, so many have counters, and no counter is of two hosts.
func TestHostsAreBoundedWhenTheyComeAtOnce(t *testing.T) {
	var h Hosts
	var wg sync.WaitGroup
	var clock atomic.Int64
	for p := range 8 {
		wg.Go(func() {
			for i := range 500 {
				x := (i*7 + p*31) % (3 * MaxHosts)
				h.Add(hostName(x), int64(x), Own, clock.Add(second))
			}
		})
	}
	wg.Wait()
	all := h.Read()
	if len(all) != MaxHosts || !slices.IsSortedFunc(all, func(x, y Host) int { return strings.Compare(x.Name, y.Name) }) {
		t.Errorf("%d hosts: %+v", len(all), all)
	}
	for _, x := range all {
		var i int
		if _, err := fmt.Sscanf(x.Name, hostName(0)[:len(hostName(0))-3]+"%d", &i); err != nil || x.Ops[Own] == 0 || x.Bytes[Own] != x.Ops[Own]*uint64(i) {
			t.Errorf("%+v (%v)", x, err)
		}
	}
}

// A command of a host that is known allocates nothing.
func TestCountingAKnownHostDoesNotAllocate(t *testing.T) {
	var h Hosts
	now := int64(0)
	host := hostName(1)
	if n := testing.AllocsPerRun(1000, func() { now += second; h.Add(host, 4096, Own, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAddHost(b *testing.B) {
	for _, hosts := range []int{1, 4, MaxHosts} {
		b.Run(fmt.Sprint(hosts), func(b *testing.B) {
			var h Hosts
			names := make([]string, hosts)
			for i := range names {
				names[i] = hostName(i)
				h.Add(strings.Clone(names[i]), 0, Own, 0) // a session has a copy of its own of the name
			}
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				now := int64(0)
				for i := 0; p.Next(); i++ {
					now += 977
					h.Add(names[i%hosts], 4096, Own, now)
				}
			})
		})
	}
}
