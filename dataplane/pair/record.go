package pair

import (
	"errors"
	"fmt"
	"slices"
)

// Node is one of the two nodes of a pair. Names on the wire and in the API are "a" and "b".
type Node uint8

// The two nodes.
const (
	A Node = 0
	B Node = 1
)

// Peer is the other node.
func (n Node) Peer() Node { return 1 - n }

func (n Node) String() string {
	switch n {
	case A:
		return "a"
	case B:
		return "b"
	}
	return fmt.Sprintf("node(%d)", uint8(n))
}

// ErrNode is returned for a node name other than "a" or "b".
var ErrNode = errors.New(`node must be "a" or "b"`)

// ParseNode reads a node's name.
func ParseNode(s string) (Node, error) {
	switch s {
	case "a":
		return A, nil
	case "b":
		return B, nil
	}
	return 0, fmt.Errorf("%w, not %q", ErrNode, s)
}

// Incarnation names one life of a target process (R2): the operating system's boot id tells whether
// the page cache survived, the nonce tells two processes of one boot apart.
type Incarnation struct {
	Boot  string `json:"boot"`
	Nonce uint64 `json:"nonce"`
}

// Member is one node in the record.
type Member struct {
	Node        Node        `json:"node"`
	Store       string      `json:"store"`
	Incarnation Incarnation `json:"incarnation"`
}

// Record is the arbiter's record (R2): who may serve. Members is never empty; the first one is the
// chair.
type Record struct {
	Cluster    string   `json:"cluster"`
	Pair       string   `json:"pair"`
	Epoch      uint64   `json:"epoch"`
	Generation uint64   `json:"generation"`
	Members    []Member `json:"members"`
}

// Member returns the entry of a node, nil if it is not a member.
func (r *Record) Member(n Node) *Member {
	for i := range r.Members {
		if r.Members[i].Node == n {
			return &r.Members[i]
		}
	}
	return nil
}

// Both reports whether the record names two members.
func (r *Record) Both() bool { return len(r.Members) == 2 }

// Chair is the first member: it serialises the metadata log.
func (r *Record) Chair() Node { return r.Members[0].Node }

// Equal compares by content.
func (r *Record) Equal(o *Record) bool {
	return r.Cluster == o.Cluster && r.Pair == o.Pair && r.Epoch == o.Epoch && r.Generation == o.Generation &&
		slices.Equal(r.Members, o.Members)
}

// ErrRecord is wrapped by Validate.
var ErrRecord = errors.New("arbiter record is not valid")

// Validate refuses a record that no node of this pair can have written.
func (r *Record) Validate(cluster, pair string) error {
	switch {
	case r.Cluster != cluster || r.Pair != pair:
		return fmt.Errorf("%w: it belongs to cluster %q pair %q, and this node to cluster %q pair %q: check --arbiter",
			ErrRecord, r.Cluster, r.Pair, cluster, pair)
	case r.Epoch == 0 || len(r.Members) == 0 || len(r.Members) > 2:
		return fmt.Errorf("%w: epoch %d with %d members", ErrRecord, r.Epoch, len(r.Members))
	}
	for i, m := range r.Members {
		if m.Node > B || m.Store == "" || i == 1 && r.Members[0].Node == m.Node {
			return fmt.Errorf("%w: member %d is node %v store %q", ErrRecord, i, m.Node, m.Store)
		}
	}
	return nil
}
