package link

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Hello is the first message of each connection of a link: the dialer sends the versions and
// features that it knows, and the acceptor answers with those that it has chosen.
type Hello struct {
	// Version is what a node of the first release speaks, which sends it alone and takes nothing
	// else. A later one sends its lowest version here as a dialer, so that such a peer takes it if
	// it can, and its choice as an acceptor.
	Version  int      `json:"version"`
	Min      int      `json:"min,omitempty"` // versions the sender speaks, both included; none: Version alone
	Max      int      `json:"max,omitempty"`
	Features []string `json:"features,omitempty"` // what the sender has beyond its version
	Cluster  string   `json:"cluster"`
	Pair     string   `json:"pair"`
	Node     string   `json:"node"`
	Role     string   `json:"role"`  // "data" or "beat"
	Link     uint64   `json:"link"`  // the same for both connections
	Error    string   `json:"error"` // the acceptor's refusal
}

// ErrRefused is wrapped when the peer, or we, refused a hello.
var ErrRefused = errors.New("link refused")

const (
	maxHello     = 4 << 10
	helloTimeout = 2 * time.Second
)

func writeHello(c net.Conn, h Hello) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	buf := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	_, err = c.Write(append(buf, b...))
	return err
}

func readHello(c io.Reader) (h Hello, err error) {
	var l [4]byte
	if _, err = io.ReadFull(c, l[:]); err != nil {
		return h, err
	}
	n := binary.BigEndian.Uint32(l[:])
	if n > maxHello {
		return h, fmt.Errorf("%w: hello of %d bytes", ErrFrame, n)
	}
	b := make([]byte, n)
	if _, err = io.ReadFull(c, b); err != nil {
		return h, err
	}
	if err = json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%w: hello: %w", ErrFrame, err)
	}
	return h, nil
}

// check compares a hello with what this node expects of its peer, the version aside.
func (h *Hello) check(cluster, pairName, peer string) error {
	switch {
	case h.Error != "":
		return fmt.Errorf("%w by the peer: %s", ErrRefused, h.Error)
	case h.Cluster != cluster || h.Pair != pairName:
		return fmt.Errorf("%w: the peer belongs to cluster %q pair %q, this node to cluster %q pair %q: check --link-peer", ErrRefused, h.Cluster, h.Pair, cluster, pairName)
	case h.Node != peer:
		return fmt.Errorf("%w: the peer is node %q, expected %q: check --node on both nodes", ErrRefused, h.Node, peer)
	case h.Role != "data" && h.Role != "beat":
		return fmt.Errorf("%w: role %q", ErrRefused, h.Role)
	}
	return nil
}
