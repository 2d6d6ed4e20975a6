package halfopen

import (
	"net"
	"slices"
	"testing"
)

func tcp(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 7} }

// The oldest goes, of the address that has the most.
func TestSetClosesTheOldestOfTheBusiestAddress(t *testing.T) {
	s := Set{Max: 3}
	var closed []string
	add := func(name, ip string) *Entry {
		e, _ := s.Add(tcp(ip), func() { closed = append(closed, name) })
		return e
	}
	other := add("other", "192.0.2.1")
	add("first", "192.0.2.9")
	second := add("second", "192.0.2.9")
	add("third", "192.0.2.9")
	if !slices.Equal(closed, []string{"first"}) || s.Len() != 3 {
		t.Fatal(closed, s.Len())
	}
	add("fourth", "::ffff:192.0.2.9") // the same, as a socket of both families has it
	if !slices.Equal(closed, []string{"first", "second"}) {
		t.Fatal(closed)
	}
	if s.Remove(second) || !s.Remove(other) || s.Remove(other) {
		t.Error("what was closed is not known to be")
	}
	add("fifth", "192.0.2.1")
	add("sixth", "192.0.2.2")
	if !slices.Equal(closed, []string{"first", "second", "third"}) {
		t.Fatal(closed)
	}
}

func TestSourceIsAnAddressOrAPrefix(t *testing.T) {
	for addr, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "2001:db8::1:2:3:4": "2001:db8::/64", "2001:db8::9": "2001:db8::/64"} {
		if got := Source(tcp(addr)).String(); got != want {
			t.Errorf("%s: %s", addr, got)
		}
	}
	if Source(&net.UnixAddr{}).IsValid() {
		t.Error("a name of a Unix socket is an address")
	}
}
