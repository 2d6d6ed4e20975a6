package attach

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

func stripedAttachment() Attachment {
	return Attachment{VolumeID: "v", Generation: 7, HostIQN: "iqn.h", TargetIQN: "iqn.t", Portals: []string{"10.0.0.1:3260"}, Pair: "p", Enroll: true,
		Stripe: 256 << 10, Legs: []Leg{{LUN: 5, WWID: "6001405a"}, {LUN: 3, WWID: "6001405b"}, {LUN: 16383, WWID: "6001405c"}, {LUN: 0, WWID: "6001405d"}}}
}

// A striped volume comes over with the order of its legs, and another order is another attachment.
// A node plugin that knows no striped volumes lacks the LUN.
func TestPublishContextOfStripedVolume(t *testing.T) {
	a := stripedAttachment()
	m := a.PublishContext()
	got, err := FromPublishContext("v", m)
	if err != nil || !got.Same(a) || !got.Striped() || !slices.Equal(got.LUNs(), a.Legs) || m[KeyLUN]+m[KeyWWID] != "" {
		t.Fatalf("%+v, %v, %v", got, m, err)
	}
	slices.Reverse(got.Legs)
	if got.Same(a) {
		t.Error("the order of the legs does not matter")
	}
	got = stripedAttachment()
	got.Stripe *= 2
	if got.Same(a) {
		t.Error("the size of the stripes does not matter")
	}
	one := Attachment{LUN: 3, WWID: "6001405"}
	if l := one.LUNs(); one.Striped() || len(l) != 1 || l[0] != (Leg{LUN: 3, WWID: "6001405"}) {
		t.Errorf("%v", l)
	}
}

// A volume is served when each of its LUNs has a path.
func TestStripedVolumeServes(t *testing.T) {
	s := Status{Attachment: stripedAttachment()}
	for i := range 4 {
		if s.Serves() {
			t.Errorf("with %d LUNs", i)
		}
		s.Paths = append(s.Paths, Path{Leg: i, Connected: true}, Path{Leg: i, Current: true})
	}
	if !s.Serves() {
		t.Error("with all LUNs")
	}
	if one := (Status{Paths: []Path{{Connected: true}}}); one.Serves() {
		t.Error("no path is current")
	}
}

func TestBadPublishContextOfStripedVolume(t *testing.T) {
	for name, c := range map[string]struct {
		change map[string]string
		says   string
	}{
		"no number":      {map[string]string{KeyStripe: "256k"}, KeyStripe},
		"no stripe":      {map[string]string{KeyStripe: "0"}, KeyStripe},
		"small stripe":   {map[string]string{KeyStripe: "4096"}, KeyStripe},
		"odd stripe":     {map[string]string{KeyStripe: "100000"}, KeyStripe},
		"no legs":        {map[string]string{KeyLegs: ""}, KeyLegs},
		"one leg":        {map[string]string{KeyLegs: "1:a"}, KeyLegs},
		"17 legs":        {map[string]string{KeyLegs: "0:a,1:b,2:c,3:d,4:e,5:f,6:g,7:h,8:i,9:j,10:k,11:l,12:m,13:n,14:o,15:p,16:q"}, KeyLegs},
		"the same LUN":   {map[string]string{KeyLegs: "1:a,1:b"}, "leg 1"},
		"the same WWID":  {map[string]string{KeyLegs: "1:a,2:a"}, "leg 1"},
		"no WWID":        {map[string]string{KeyLegs: "1:a,2:"}, "leg 1"},
		"only a WWID":    {map[string]string{KeyLegs: "a,b"}, "leg 0"},
		"LUN too large":  {map[string]string{KeyLegs: "1:a,16384:b"}, "leg 1"},
		"one LUN beside": {map[string]string{KeyLUN: "3"}, KeyLUN},
		"WWID beside":    {map[string]string{KeyWWID: "a"}, KeyWWID},
		"replay beside":  {map[string]string{KeyReplay: "3"}, KeyReplay},
		"no host":        {map[string]string{KeyHost: ""}, KeyHost},
		"no portals":     {map[string]string{KeyPortals: ""}, KeyPortals},
	} {
		m := stripedAttachment().PublishContext()
		maps.Copy(m, c.change)
		if a, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}
