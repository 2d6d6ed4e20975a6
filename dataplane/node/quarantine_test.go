package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/supervise"
)

// Two processes that ended within a minute, of either node, executing commands of one LUN: that LUN
// is refused, and no other one.
func TestWhichLUNIsRefused(t *testing.T) {
	const now = int64(time.Hour)
	blame := func(lun string, nonce uint64, ago time.Duration) supervise.Blame {
		return supervise.Blame{LUN: lun, Node: "a", Nonce: nonce, Ago: ago}
	}
	for name, x := range map[string]struct {
		told    [][]supervise.Blame
		refused []string
	}{
		"one process":               {[][]supervise.Blame{{blame("x", 1, 0)}, {blame("x", 1, time.Second)}}, nil},
		"two processes":             {[][]supervise.Blame{{blame("x", 1, 59*time.Second)}, {blame("x", 2, 0)}}, []string{"x"}},
		"told together":             {[][]supervise.Blame{{blame("x", 1, 30*time.Second), blame("x", 2, 0)}}, []string{"x"}},
		"told in the other order":   {[][]supervise.Blame{{blame("x", 2, 0)}, {blame("x", 1, 30*time.Second)}}, []string{"x"}},
		"two LUNs":                  {[][]supervise.Blame{{blame("x", 1, 0), blame("y", 2, 0)}}, nil},
		"a minute apart":            {[][]supervise.Blame{{blame("x", 1, 62*time.Second)}, {blame("x", 2, 0)}}, nil},
		"the third is close enough": {[][]supervise.Blame{{blame("x", 1, 90*time.Second), blame("x", 2, 20*time.Second)}, {blame("x", 3, 0)}}, []string{"x"}},
		"long ago, and close":       {[][]supervise.Blame{{blame("x", 1, 110*time.Second), blame("x", 2, 100*time.Second)}}, []string{"x"}},
	} {
		q := newQuarantines()
		var all []string
		for _, list := range x.told {
			_, refuse := q.learn(now, list)
			all = append(all, refuse...)
		}
		if !slices.Equal(all, x.refused) || q.refused("x") != slices.Contains(x.refused, "x") {
			t.Errorf("%s: %v are refused, not %v", name, all, x.refused)
		}
	}
}

// What is new is passed on once. When a quarantine has ended, what was known before counts no more,
// told again or not; what comes after does.
func TestForgivenBlamesDoNotCount(t *testing.T) {
	q, now := newQuarantines(), int64(time.Hour)
	first := []supervise.Blame{{LUN: "x", Node: "a", Nonce: 1, Ago: 20 * time.Second}, {LUN: "x", Node: "b", Nonce: 2, Ago: 8 * time.Second}}
	fresh, refuse := q.learn(now, first)
	if len(fresh) != 2 || len(refuse) != 1 || !strings.Contains(q.luns["x"], "node a, and within 12s that of node b") {
		t.Fatalf("%v, %v, %q", fresh, refuse, q.luns["x"])
	}
	if fresh, refuse := q.learn(now, first); len(fresh)+len(refuse) != 0 {
		t.Errorf("told again: %v, %v", fresh, refuse)
	}
	q.forgive(now+int64(time.Second), "x")
	if q.refused("x") {
		t.Error("it is refused still")
	}
	later := now + int64(2*time.Second)
	for i := range first {
		first[i].Ago += 2 * time.Second
	}
	if fresh, refuse := q.learn(later, first); len(fresh)+len(refuse) != 0 {
		t.Errorf("after the end: %v, %v", fresh, refuse)
	}
	if _, refuse := q.learn(later, []supervise.Blame{{LUN: "x", Node: "a", Nonce: 3}}); len(refuse) != 0 {
		t.Errorf("one process since: %v", refuse)
	}
	if _, refuse := q.learn(later+int64(time.Second), []supervise.Blame{{LUN: "x", Node: "a", Nonce: 4}}); len(refuse) != 1 {
		t.Errorf("two processes since: %v", refuse)
	}
}
