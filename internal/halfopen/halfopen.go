// Package halfopen bounds the connections of a listener whose peers have not shown yet who they
// are. Every connection is accepted: who closes the newest when there are too many lets a few idle
// sockets keep every other client out. It is the oldest that goes, of the address that has the
// most, so that one address costs only itself.
package halfopen

import (
	"net"
	"net/netip"
	"sync"
)

// Set is the half-open connections of a listener. The zero value holds none and admits one at a
// time.
type Set struct {
	Max int // at once

	mu   sync.Mutex
	list []*Entry // oldest first
}

// Entry is one connection of a Set.
type Entry struct {
	from  netip.Prefix
	close func()
}

// Add enters a connection from addr. If there are more than Max then, it takes one out and closes
// it, which is never the new one unless Max is 1 or less: evicted tells so. close is called without
// a lock held, once, and must not block.
func (s *Set) Add(addr net.Addr, close func()) (e *Entry, evicted bool) {
	e = &Entry{from: Source(addr), close: close}
	s.mu.Lock()
	var old *Entry
	if len(s.list) >= max(s.Max, 1) {
		old = s.oldest()
		s.drop(old)
	}
	s.list = append(s.list, e)
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	return e, old != nil
}

// Remove takes a connection out whose peer is known now, or that has ended. False: it was closed
// before.
func (s *Set) Remove(e *Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drop(e)
}

// Len is how many there are.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

// oldest is the oldest connection of the address that has the most.
func (s *Set) oldest() *Entry {
	n := map[netip.Prefix]int{}
	most := 0
	for _, e := range s.list {
		n[e.from]++
		most = max(most, n[e.from])
	}
	for _, e := range s.list {
		if n[e.from] == most {
			return e
		}
	}
	return nil
}

func (s *Set) drop(e *Entry) bool {
	for i, x := range s.list {
		if x == e {
			s.list = append(s.list[:i], s.list[i+1:]...)
			return true
		}
	}
	return false
}

// Source is what counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that a
// machine is given; the zero value for anything else.
func Source(addr net.Addr) netip.Prefix {
	t, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
