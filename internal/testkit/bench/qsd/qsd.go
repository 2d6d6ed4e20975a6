// Package qsd runs the benchmark's mirrored peer: two qemu-storage-daemons in the topology of a
// pair. B exports a file by NBD; A mirrors each write to a file of its own and to B (quorum with
// two votes), reads its own file (read-pattern fifo), and exports that by NBD. Writes go through
// the page cache on both nodes (cache.direct=off), as with Gemel's write-back; a flush is fdatasync
// on both.
//
// What it lacks of a pair: membership, fencing, resync, failover. When B dies reads continue and
// writes fail with EIO (vote-threshold 2 has no quorum); nothing is copied to a B that comes back.
// Discards are ignored. A server of qemu 7.2 serves at most 16 requests of a connection at a time,
// which holds for a host's at A and for A's at B.
package qsd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gemel-storage/gemel/internal/testkit/bench/nbd"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

// Program is what has to be installed, by Debian package qemu-system-common.
const Program = "qemu-storage-daemon"

// Names in the nodes' folders.
const (
	imageName = "qsd.img"
	logName   = "qsd.log"
	tlsName   = "qsd-tls"
)

const (
	exportName = "gemel"
	startLimit = 30 * time.Second
	stopLimit  = 10 * time.Second
)

// Options are variants of a pair.
type Options struct {
	// TLS encrypts the connection of A to B, with certificates on both ends (P-256) that are made
	// for it in the nodes' folders.
	TLS bool
}

// Pair is a running pair.
type Pair struct {
	Address, Export string    // of A, for nbd.Dial over TCP
	Files           [2]string // of A and B
	PIDs            [2]int    // of A and B
	Flags           string    // version and command lines, for the report

	nodes [2]*lab.Process
	logs  [2]string
}

// Available says why there can be no pair; nil if there can.
func Available() error {
	if _, err := exec.LookPath(Program); err != nil {
		return fmt.Errorf("%s is missing (Debian package qemu-system-common)", Program)
	}
	return nil
}

// Start makes a sparse file of size bytes in each folder and starts both nodes. ctx bounds the
// start only. The nodes die with this process.
func Start(ctx context.Context, dirA, dirB string, size int64, o Options) (*Pair, error) {
	if size <= 0 || size%4096 != 0 {
		return nil, fmt.Errorf("qsd: size is %d bytes, want a positive multiple of 4096", size)
	}
	if dirA == dirB {
		return nil, fmt.Errorf("qsd: both nodes in %s, want a folder for each", dirA)
	}
	if err := Available(); err != nil {
		return nil, fmt.Errorf("qsd: %w", err)
	}
	version, err := exec.CommandContext(ctx, Program, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("qsd: version: %w", err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	p := &Pair{Export: exportName, Flags: first + "; cache.direct=off (write-back) on both nodes"}
	for i, dir := range [2]string{dirA, dirB} {
		p.Files[i], p.logs[i] = filepath.Join(dir, imageName), filepath.Join(dir, logName)
		if err := sparse(p.Files[i], size); err != nil {
			return nil, fmt.Errorf("qsd: %w", err)
		}
	}
	if o.TLS {
		if err := makeCertificates(filepath.Join(dirA, tlsName), filepath.Join(dirB, tlsName)); err != nil {
			return nil, fmt.Errorf("qsd: certificates: %w", err)
		}
	}
	if err := p.start(ctx, dirA, dirB, o); err != nil {
		return nil, errors.Join(fmt.Errorf("qsd: %w", err), p.Close())
	}
	return p, nil
}

func sparse(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// start starts B first: A opens its export when it starts.
func (p *Pair) start(ctx context.Context, dirA, dirB string, o Options) error {
	addressA, err := freeport.Addr("127.0.0.1")
	if err != nil {
		return err
	}
	addressB, err := freeport.Addr("127.0.0.1")
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addressB)
	if err != nil {
		return err
	}
	remote := object{"driver": "nbd", "node-name": "remote", "export": exportName,
		"server": object{"type": "inet", "host": host, "port": port}}
	var credentials [2][]string
	server := ""
	if o.TLS {
		credentials[0] = credential("client", filepath.Join(dirA, tlsName))
		credentials[1] = credential("server", filepath.Join(dirB, tlsName))
		remote["tls-creds"], server = "tls", "tls"
	}
	file := func(i int) object {
		return object{"driver": "file", "node-name": "local", "filename": p.Files[i], "cache": object{"direct": false}}
	}
	quorum := object{"driver": "quorum", "node-name": "mirror", "children": []string{"local", "remote"}, "vote-threshold": 2,
		"read-pattern": "fifo"}
	argsB, err := arguments(addressB, "local", credentials[1], server, file(1))
	if err == nil {
		err = p.launch(ctx, 1, addressB, !o.TLS, argsB)
	}
	if err != nil {
		return err
	}
	argsA, err := arguments(addressA, "mirror", credentials[0], "", file(0), remote, quorum)
	if err == nil {
		err = p.launch(ctx, 0, addressA, true, argsA)
	}
	p.Address = addressA
	return err
}

type object = map[string]any

func credential(end, dir string) []string {
	return []string{"--object", "tls-creds-x509,id=tls,endpoint=" + end + ",verify-peer=on,dir=" + strings.ReplaceAll(dir, ",", ",,")}
}

// arguments are those of a node that exports one of its block devices. With tls, its server wants
// certificates.
func arguments(address, exported string, credentials []string, tls string, devices ...object) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	args := credentials
	for _, d := range devices {
		b, err := json.Marshal(d)
		if err != nil {
			return nil, err
		}
		args = append(args, "--blockdev", string(b))
	}
	server := "addr.type=inet,addr.host=" + host + ",addr.port=" + port
	if tls != "" {
		server += ",tls-creds=" + tls
	}
	export := "type=nbd,id=export,node-name=" + exported + ",name=" + exportName + ",writable=on"
	return append(args, "--nbd-server", server, "--export", export), nil
}

// launch starts a node and waits until it serves: its export opens, or, where that takes a
// certificate, its port does.
func (p *Pair) launch(ctx context.Context, i int, address string, open bool, args []string) error {
	name := [2]string{"A", "B"}[i]
	p.Flags += fmt.Sprintf("\n%s: %s %s", name, Program, strings.Join(args, " "))
	node, err := lab.Start(Program+" "+name, p.logs[i], Program, args...)
	if err != nil {
		return err
	}
	p.nodes[i], p.PIDs[i] = node, node.PID()
	var last error
	err = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, startLimit, true, func(context.Context) (bool, error) {
		if node.Exited() {
			last = errors.New("it ended")
			return true, nil
		}
		last = probe(ctx, address, open)
		return last == nil, nil
	})
	if last == nil { // it serves
		return nil
	}
	said, _ := os.ReadFile(p.logs[i])
	return fmt.Errorf("start %s %s: %w: %s", Program, name, errors.Join(err, last), strings.TrimSpace(string(said)))
}

func probe(ctx context.Context, address string, open bool) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if open {
		c, err := nbd.Dial(ctx, "tcp", address, exportName)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}

// Close ends both nodes, A first, which flushes, and waits for them. The files remain.
func (p *Pair) Close() error {
	var err error
	for i, n := range p.nodes {
		if n == nil {
			continue
		}
		if e := n.Stop(stopLimit); e != nil {
			said, _ := os.ReadFile(p.logs[i])
			err = errors.Join(err, fmt.Errorf("qsd: node %c: %w: %s", 'A'+i, e, strings.TrimSpace(string(said))))
		}
	}
	return err
}
