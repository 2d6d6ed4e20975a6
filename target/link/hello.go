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

// Hello opens each connection of a link.
type Hello struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
	Pair    string `json:"pair"`
	Node    string `json:"node"`
	Role    string `json:"role"`  // "data" or "beat"
	Link    uint64 `json:"link"`  // the same for both connections
	Error   string `json:"error"` // the acceptor's refusal
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

func readHello(c net.Conn) (h Hello, err error) {
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

// check compares a hello with what this node expects of its peer.
func (h *Hello) check(cluster, pairName, peer string) error {
	switch {
	case h.Error != "":
		return fmt.Errorf("%w by the peer: %s", ErrRefused, h.Error)
	case h.Version != Version:
		return fmt.Errorf("%w: the peer speaks link version %d, this node %d", ErrRefused, h.Version, Version)
	case h.Cluster != cluster || h.Pair != pairName:
		return fmt.Errorf("%w: the peer is of cluster %q pair %q, this node of %q %q", ErrRefused, h.Cluster, h.Pair, cluster, pairName)
	case h.Node != peer:
		return fmt.Errorf("%w: the peer says it is node %q, expected %q", ErrRefused, h.Node, peer)
	case h.Role != "data" && h.Role != "beat":
		return fmt.Errorf("%w: role %q", ErrRefused, h.Role)
	}
	return nil
}
