package count

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxHosts is how many hosts of one LUN have counters: names come from outside, so memory needs
	// a bound.
	MaxHosts = 64

	// lastStep is by how much the instant of a host's last command has to grow to be stored: the
	// cores that count share its cache line, and no reader needs it finer.
	lastStep = int64(100 * time.Millisecond)
)

// Hosts has the counters of the hosts of one LUN at one node. The zero value is ready.
type Hosts struct {
	list atomic.Pointer[[]namedHost] // immutable, sorted by name
	mu   sync.Mutex                  // of who replaces the list
}

// namedHost keeps the name apart from the counters: a search reads only cache lines that no command
// writes to.
type namedHost struct {
	name string
	*hostCounts
}

type hostCounts struct {
	ways [Ways]struct{ ops, bytes atomic.Uint64 }
	last atomic.Int64
}

// Host is what one host has read and written. Counters of a host that was replaced start from zero
// when it comes back.
type Host struct {
	Name       string
	Ops, Bytes [Ways]uint64
	Last       int64 // ns by the clock of Add: its last command came then or up to 100 ms later
}

// Add counts one READ or WRITE of a host that ended at now (ns). A host beyond MaxHosts takes the
// place of the one whose last command is the longest ago. Only the first command of a host
// allocates memory.
func (h *Hosts) Add(host string, n int64, way Way, now int64) {
	c := h.find(host)
	if c == nil {
		c = h.insert(host, now)
	}
	w := &c.ways[way]
	w.ops.Add(1)
	if n > 0 {
		w.bytes.Add(uint64(n))
	}
	// If the swap fails, another command has stored its instant; a plain store could set it back.
	if last := c.last.Load(); now-last >= lastStep {
		c.last.CompareAndSwap(last, now)
	}
}

func (h *Hosts) hosts() []namedHost {
	if l := h.list.Load(); l != nil {
		return *l
	}
	return nil
}

func search(list []namedHost, host string) (int, bool) {
	return slices.BinarySearchFunc(list, host, func(x namedHost, name string) int { return strings.Compare(x.name, name) })
}

func (h *Hosts) find(host string) *hostCounts {
	list := h.hosts()
	if i, ok := search(list, host); ok {
		return list[i].hostCounts
	}
	return nil
}

// insert gives counters to a host that had none when its command looked for them.
func (h *Hosts) insert(host string, now int64) *hostCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.find(host); c != nil {
		return c
	}
	list := slices.Clone(h.hosts())
	if len(list) >= MaxHosts {
		oldest := slices.MinFunc(list, func(x, y namedHost) int { return cmp.Compare(x.last.Load(), y.last.Load()) })
		at, _ := search(list, oldest.name)
		list = slices.Delete(list, at, at+1)
	}
	c := new(hostCounts)
	c.last.Store(now) // before others see it: else it would be the oldest for the next host
	at, _ := search(list, host)
	list = slices.Insert(list, at, namedHost{host, c})
	h.list.Store(&list)
	return c
}

// Read the counters, sorted by name. A command that ends while they are read may be in some of them
// and not yet in others.
func (h *Hosts) Read() []Host {
	list := h.hosts()
	out := make([]Host, len(list))
	for i, x := range list {
		out[i] = Host{Name: x.name, Last: x.last.Load()}
		for w := range x.ways {
			out[i].Ops[w], out[i].Bytes[w] = x.ways[w].ops.Load(), x.ways[w].bytes.Load()
		}
	}
	return out
}
