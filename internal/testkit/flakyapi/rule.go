package flakyapi

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// Call is a request as RBAC sees it.
type Call struct {
	Verb        string // get, list, watch, create, update, patch, delete or deletecollection; of a path that is no resource: its method
	Group       string // "" is the core group
	Resource    string // plural; "" is no resource
	Subresource string
	Namespace   string
	Name        string
	Path        string
}

// Mutating reports whether the call may change something.
func (c Call) Mutating() bool {
	return !slices.Contains([]string{"get", "list", "watch", http.MethodGet, http.MethodHead, http.MethodOptions}, c.Verb)
}

// Match picks calls; an empty field matches everything.
type Match struct {
	Verbs       []string
	Mutating    bool // only calls that may change something
	Resource    string
	Subresource string // "-": none
	Namespace   string
	Name        string
}

func (m Match) matches(c Call) bool {
	eq := func(want, got string) bool { return want == "" || want == got }
	return (len(m.Verbs) == 0 || slices.Contains(m.Verbs, c.Verb)) && (!m.Mutating || c.Mutating()) && eq(m.Resource, c.Resource) &&
		(eq(m.Subresource, c.Subresource) || m.Subresource == "-" && c.Subresource == "") && eq(m.Namespace, c.Namespace) && eq(m.Name, c.Name)
}

// Fault is what happens to a call. Delay comes first and goes with all the others.
type Fault struct {
	Delay        time.Duration
	LoseRequest  bool // the API server never sees it; the connection breaks
	LoseResponse bool // it is carried out; the connection breaks
	Silent       bool // with the two above: no answer at all until the client gives up, in place of a broken connection
	Duplicate    bool // a mutating call is carried out twice; the second answer is heard
	Answer       int  // 409, 429, 500, 503, …: the proxy's own answer; the API server never sees the call
	RetryAfter   int  // seconds, with Answer
	// CutAfter breaks the answer off after so long, which is for watches. An answer that has ended
	// by then is whole.
	CutAfter time.Duration
	// Lag delays each part of the answer by so long, which is for watches: the client's cache is so
	// far behind, and its calls are not.
	Lag time.Duration
}

// Rule applies a fault to some of the calls that match. Which ones follows from their number alone,
// counted per rule from 1 in the order of arrival, and from the seed: after From, at most Times of
// them (0: all), each with Probability (0: always).
type Rule struct {
	Match
	Fault
	From        int
	Times       int
	Probability float64
	Seed        uint64
}

// ruleState counts.
type ruleState struct {
	Rule
	seen, done int
}

// take counts a matching call and says whether the fault happens to it.
func (r *ruleState) take() bool {
	r.seen++
	if r.seen <= r.From || r.Times > 0 && r.done >= r.Times {
		return false
	}
	if r.Probability > 0 && rand.New(rand.NewPCG(r.Seed, uint64(r.seen))).Float64() >= r.Probability {
		return false
	}
	r.done++
	return true
}
