package attach

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

func overPairs() Attachment {
	a := stripedAttachment()
	a.Others = []Target{{IQN: "iqn.u", Portals: []string{"10.0.0.2:3260", "10.0.0.3:3260"}, Pair: "q"}}
	a.Legs[1].Target, a.Legs[3].Target, a.Legs[3].LUN = 1, 1, 5
	return a
}

// A volume at two targets comes over with both, and with the target of each LUN. A node plugin that
// knows one target of a volume lacks the LUNs.
func TestPublishContextOfTwoTargets(t *testing.T) {
	a := overPairs()
	m := a.PublishContext()
	got, err := FromPublishContext("v", m)
	if err != nil || !got.Same(a) || len(got.Targets()) != 2 || got.Targets()[1].Pair != "q" || m[KeyLegs] != "" {
		t.Fatalf("%+v, %v, %v", got, m, err)
	}
	for _, change := range []func(*Attachment){
		func(a *Attachment) { a.Legs[0].Target = 1 },
		func(a *Attachment) { a.Others[0].IQN = "iqn.v" },
		func(a *Attachment) { a.Others[0].Portals = a.Others[0].Portals[:1] },
	} {
		other := overPairs()
		if change(&other); other.Same(a) {
			t.Errorf("%+v is the same", other)
		}
	}
	if a.RecordVersion() != 2 || stripedAttachment().RecordVersion() != 1 {
		t.Error("an older program would take the LUNs for those of one target")
	}
	if got := a.OnPair("q"); !slices.Equal(got, []int{1}) || len(a.OnPair("")) != 2 || a.OnPair("none") != nil {
		t.Error(got)
	}
	copied := a
	copied.SetCredentials(1, &CHAP{User: "u"}, nil)
	copied.SetCredentials(0, &CHAP{User: "t"}, nil)
	if a.Others[0].Auth != nil || copied.Targets()[1].Auth.User != "u" || copied.Targets()[0].Auth.User != "t" {
		t.Error("credentials of a copy")
	}
}

func TestWrongTargetsOfAPublishContext(t *testing.T) {
	for _, c := range []struct{ key, value, says string }{
		{KeyOthers, "", "lacks"},
		{KeyLegsAt, "", "lacks"},
		{KeyOthers, "iqn.u", KeyOthers},
		{KeyOthers, "[]", "has 0 targets"},
		{KeyOthers, `[{"iqn":"iqn.t","portals":["p"],"pair":"q"}]`, "iqn.t, is named twice"},
		{KeyOthers, `[{"iqn":"iqn.u","pair":"q"}]`, "lacks its iqn or its portals"},
		{KeyOthers, `[{"iqn":"iqn.u","portals":["p"]}]`, "lacks its pair"},
		{KeyLegs, "5:6001405a", "exclude each other"},
		{KeyLUN, "5", "exclude each other"},
		{KeyLegsAt, "0:5:6001405a,2:5:6001405b", "target in 0..1"},
		{KeyLegsAt, "5:6001405a,3:6001405b", "TARGET:LUN:WWID"},
		{KeyLegsAt, "-1:5:6001405a,0:5:6001405b", "TARGET:LUN:WWID"},
		{KeyLegsAt, "0:5:6001405a,0:5:6001405b", "leg 1 is LUN 5"},
		{KeyLegsAt, "0:5:6001405a,1:5:6001405a", "leg 1 is LUN 5"},
	} {
		m := maps.Clone(overPairs().PublishContext())
		m[c.key] = c.value
		if a, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s=%q: %+v, %v", c.key, c.value, a, err)
		}
	}
}
