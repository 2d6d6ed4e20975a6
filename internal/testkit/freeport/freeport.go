// Package freeport finds TCP ports for servers that are started a moment later, by tests and tools.
// A program that binds port 0, closes it and hands the number on loses it now and then: to another
// process that does the same, or to the local end of any connection.
package freeport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
)

// The ports lie below those that Linux takes for port 0 and for the local end of a connection
// (ip_local_port_range, 32768 and up unless an administrator has moved it), and are dealt to
// processes in blocks.
const (
	first  = 20000
	blocks = 200
	each   = 50
)

// ErrNone means that nothing was free.
var ErrNone = fmt.Errorf("no TCP port between %d and %d is free", first, first+blocks*each-1)

// dealer hands out the ports of the blocks that this process holds. A block is held by listening on
// an abstract UNIX socket, so that it is free again when the process has ended in whatever way, and
// so that a network namespace has blocks of its own.
type dealer struct {
	mu    sync.Mutex
	name  string // of the sockets, before the block's number
	tried int    // blocks
	locks []net.Listener
	ports []int // of the blocks held
	at    int   // in ports: the next to look at
}

var process = dealer{name: "@gemel-ports-"}

// On finds a port that is free on all hosts, which are addresses of this machine, and that no other
// caller of this package gets while this process lives, unless it has had thousands.
func On(hosts ...string) (int, error) { return process.on(hosts) }

// Addr is On for one host, with the host before the port.
func Addr(host string) (string, error) {
	port, err := On(host)
	return net.JoinHostPort(host, strconv.Itoa(port)), err
}

func (d *dealer) on(hosts []string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var last error
	for range blocks * each {
		port, ok := d.next()
		if !ok {
			break
		}
		if last = free(port, hosts); last == nil {
			return port, nil
		}
	}
	return 0, errors.Join(ErrNone, last)
}

// next is the port to look at; the first one comes again when there is no other block any more.
func (d *dealer) next() (int, bool) {
	if d.at == len(d.ports) && !d.take() {
		d.at = 0
	}
	if len(d.ports) == 0 {
		return 0, false
	}
	port := d.ports[d.at]
	d.at++
	return port, true
}

// take holds one more block. Processes begin at different ones.
func (d *dealer) take() bool {
	for d.tried < blocks {
		n := (os.Getpid() + d.tried) % blocks
		d.tried++
		l, err := net.Listen("unix", d.name+strconv.Itoa(n))
		if err != nil {
			continue
		}
		d.locks = append(d.locks, l)
		for i := range each {
			d.ports = append(d.ports, first+n*each+i)
		}
		return true
	}
	return false
}

func free(port int, hosts []string) error {
	for _, h := range hosts {
		l, err := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}
