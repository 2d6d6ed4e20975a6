package meta

import (
	"errors"
	"testing"
	"time"
)

// The home of a LUN follows its only host at attach, and nothing else that a mapping says changes
// where it belongs.
func TestHomeFollowsConsumer(t *testing.T) {
	now := Now()
	at := func(node string) *MapHost {
		return &MapHost{UUID: id(1), Host: "iqn.h", Near: Near{Node: node, By: NearZone}, At: now}
	}
	for name, c := range map[string]struct {
		before Entry
		e      *MapHost
		home   string
	}{
		"it follows":                {Entry{}, at("b"), "b"},
		"it is there":               {Entry{}, at("a"), "a"},
		"equally near":              {Entry{}, &MapHost{UUID: id(1), Host: "iqn.h"}, "a"},
		"another host is mapped":    {Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.other"}}, at("b"), "a"},
		"it is mapped already":      {Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.h"}}, at("b"), "a"},
		"pinned":                    {Entry{Modify: &Modify{UUID: id(1), Pin: "a"}}, at("b"), "a"},
		"held by a person":          {Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "a", Home: true, HeldUntil: now.Add(time.Hour)}}, at("b"), "a"},
		"a hold that has ended":     {Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "a", Home: true, HeldUntil: now}}, at("b"), "b"},
		"balancing is off":          {Entry{Policy: &Policy{Mode: "off", FailBackDelay: time.Minute, Version: 1}}, at("b"), "a"},
		"balancing only observes":   {Entry{Policy: &Policy{Mode: "observe", FailBackDelay: time.Minute, Version: 1}}, at("b"), "b"},
		"a mapping that is no more": {Entry{UnmapHost: &UnmapHost{UUID: id(1), Host: "iqn.h"}}, at("b"), "b"},
	} {
		s, apply := owned(t)
		apply(Entry{Commit: &Object{UUID: id(1)}})
		if apply(c.before); s.LUNs[id(1)].Preferred != "a" {
			t.Fatalf("%s: %+v", name, s.LUNs[id(1)])
		}
		out, fx := apply(Entry{MapHost: c.e})
		l := s.LUNs[id(1)]
		if out.Code != "" || l.Preferred != c.home || l.Owner != "a" || (len(fx.PreferredLUNs) > 0) != (c.home == "b") {
			t.Errorf("%s: home %s, owner %s, %+v %+v", name, l.Preferred, l.Owner, out, fx)
		}
		if m := l.Maps[c.e.Host]; m.Near != c.e.Near || out.Map.Generation != m.Generation {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestConsumerIsTheOnlyHost(t *testing.T) {
	s, apply := owned(t)
	apply(Entry{Commit: &Object{UUID: id(1)}})
	near := Near{Node: "b", By: NearWorker}
	if got := s.LUNs[id(1)].Consumer(); got != (Near{}) {
		t.Error(got)
	}
	apply(Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.h", Near: near}})
	if got := s.LUNs[id(1)].Consumer(); got != near {
		t.Error(got)
	}
	// A repeated request that knows no place leaves what is known.
	if out, fx := apply(Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.h"}}); !out.Noop || len(fx.LUNs) != 0 || s.LUNs[id(1)].Consumer() != near {
		t.Errorf("%+v %+v", out, fx)
	}
	zone := Near{Node: "a", By: NearZone}
	if _, fx := apply(Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.h", Near: zone}}); len(fx.LUNs) != 1 || s.LUNs[id(1)].Consumer() != zone || s.LUNs[id(1)].Preferred != "b" {
		t.Errorf("%+v %+v", fx, s.LUNs[id(1)])
	}
	apply(Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.other", Near: near}})
	if got := s.LUNs[id(1)].Consumer(); got != (Near{}) {
		t.Error("two hosts are not the only one:", got)
	}
	for _, bad := range []Near{{Node: "c", By: NearZone}, {Node: "a", By: "rack"}, {Node: "a"}, {By: NearZone}} {
		if out, _ := apply(Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.third", Near: bad}}); !errors.Is(out.Err(), ErrInvalid) {
			t.Errorf("%+v: %+v", bad, out)
		}
	}
}
