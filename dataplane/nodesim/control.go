package nodesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// caller is what asks for volumes, as the driver does: of one node or the other, again until it is
// answered.
type caller struct {
	w       *world
	conns   [2]*grpc.ClientConn
	clients [2]targetv1.TargetServiceClient
}

const callerAddr = "127.0.2.1"

func newCaller(w *world) (*caller, error) {
	c := &caller{w: w}
	for i := range c.conns {
		conn, err := grpc.NewClient("passthrough:///"+controlAddr(i), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return w.net.dial(ctx, callerAddr, nil, addr)
			}))
		if err != nil {
			return nil, err
		}
		c.conns[i], c.clients[i] = conn, targetv1.NewTargetServiceClient(conn)
	}
	return c, nil
}

func (c *caller) close() {
	for _, x := range c.conns {
		_ = x.Close()
	}
}

// Bounds of a call.
const (
	callTry   = 15 * time.Second // one attempt
	callBound = 40 * time.Second // all of them, once nothing fails any more
)

// again are the answers after which a caller asks again.
func again(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Unknown, codes.Canceled, codes.Internal:
		return true
	}
	return false
}

// call asks until it is answered. What it returns is the answer, or that the history ended.
func call[T any](c *caller, rng *rand.Rand, what string, f func(context.Context, targetv1.TargetServiceClient) (T, error)) (out T, err error) {
	p := c.w.begin(callBound, "%s", what)
	defer c.w.ended(p, "control call")
	for i := rng.IntN(2); ; i = 1 - i {
		ctx, cancel := context.WithTimeout(context.Background(), callTry)
		out, err = f(ctx, c.clients[i])
		cancel()
		if err == nil || !again(err) {
			c.w.trace("%s: %v", what, err)
			return out, err
		}
		c.w.trace("%s: again: %v", what, err)
		if c.w.gaveUp() {
			return out, errors.New("the history ended before the answer")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// lun is one LUN with what hosts need to reach it.
type lun struct {
	id     string
	name   string
	size   uint64
	wwid   string
	target string

	mu     sync.Mutex
	number map[string]uint16 // by host
}

func (l *lun) numberOf(host string) uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.number[host]
}

// make makes a LUN, and maps it to hosts.
func (c *caller) make(rng *rand.Rand, name, owner string, size uint64, hosts ...string) (*lun, error) {
	l := &lun{id: fmt.Sprintf("%08x-0000-4000-8000-%012x", rng.Uint32(), rng.Uint64()&0xffffffffffff), name: name, size: size, number: map[string]uint16{}}
	if _, err := call(c, rng, "create LUN "+name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.LUN, error) {
		return t.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: l.id, Name: name, SizeBytes: size, PreferredNode: owner})
	}); err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if err := c.mapHost(rng, l, h); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (c *caller) mapHost(rng *rand.Rand, l *lun, host string) error {
	m, err := call(c, rng, "map "+l.name+" to "+host, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.Mapping, error) {
		return t.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: l.id, HostIqn: host})
	})
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.number[host], l.wwid, l.target = uint16(m.Lun), m.Wwid, m.TargetIqn
	}
	return err
}

// work asks for what a cluster asks for, one after the other, until the hosts stop.
func (c *caller) work(rng *rand.Rand, luns []*lun) {
	type snap struct{ id string }
	var snaps []snap
	var extra *lun
	for n := 0; !c.w.isIdle(); n++ {
		c.w.pause(rng, 200*time.Millisecond, 1200*time.Millisecond)
		l := luns[rng.IntN(len(luns))]
		var err error
		switch k := rng.IntN(10); {
		case k < 4:
			to := name(rng.IntN(2))
			_, err = call(c, rng, "transfer "+l.name+" to "+to, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.TransferOwnershipResponse, error) {
				return t.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{l.id}, ToNode: to})
			})
		case k < 6:
			s := snap{fmt.Sprintf("%08x-0000-4000-9000-%012x", rng.Uint32(), rng.Uint64()&0xffffffffffff)}
			_, err = call(c, rng, "snapshot of "+l.name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.Snapshot, error) {
				return t.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: s.id, Name: "snap-" + s.id, SourceLunUuid: l.id})
			})
			if err == nil {
				snaps = append(snaps, s)
			} else if status.Code(err) == codes.FailedPrecondition || status.Code(err) == codes.Internal {
				err = nil // the LUN moved, or a node could not: it is asked for again
			}
		case k < 7 && len(snaps) > 0:
			s := snaps[0]
			snaps = snaps[1:]
			_, err = call(c, rng, "delete snapshot", func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.DeleteSnapshotResponse, error) {
				return t.DeleteSnapshot(ctx, &targetv1.DeleteSnapshotRequest{Uuid: s.id})
			})
		case k < 8 && extra == nil:
			if extra, err = c.make(rng, fmt.Sprintf("extra-%d", n), "", 8<<20, hostName("extra")); err != nil {
				extra = nil
			}
		case extra != nil:
			_, err = call(c, rng, "unmap "+extra.name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.UnmapHostResponse, error) {
				return t.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: extra.id})
			})
			if err == nil {
				_, err = call(c, rng, "delete "+extra.name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.DeleteLUNResponse, error) {
					return t.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: extra.id})
				})
				extra = nil
			}
		}
		if status.Code(err) == codes.ResourceExhausted && c.w.roomless.Load() {
			continue // refused with that; the caller asks again
		}
		if err != nil && !c.w.gaveUp() {
			c.w.fail("a control call is refused: %v", err)
		}
	}
}

// unmaps takes the shared LUN from a host, looks whether anything of that host's comes after the
// answer, and gives it back.
func (c *caller) unmaps(rng *rand.Rand) {
	w := c.w
	for !w.isIdle() {
		w.pause(rng, 200*time.Millisecond, 900*time.Millisecond)
		k := rng.IntN(len(w.fencers))
		c.unmap(rng, w.fencers[k], w.fencers[(k+1)%len(w.fencers)])
	}
}

func (c *caller) unmap(rng *rand.Rand, f, witness *fencer) {
	w := c.w
	w.fences.lock <- struct{}{}
	defer func() { <-w.fences.lock }()
	way := rng.IntN(2)
	late := time.Duration(rng.IntN(8)) * time.Millisecond
	w.fences.change(1)
	w.busy.Go(func() { // a registration of the host is on its way meanwhile
		defer w.fences.change(-1)
		time.Sleep(late)
		f.exec(way, "REGISTER", 0, prOut(prRegisterAny, 0), prParam(0, f.key), nil)
	})
	w.pause(rng, 0, 6*time.Millisecond)
	if _, err := call(c, rng, "unmap shared from "+f.name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.UnmapHostResponse, error) {
		return t.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: w.shared.id, HostIqn: f.name})
	}); err != nil {
		w.fail("unmap: %v", err)
		return
	}
	w.rare("a host was unmapped")
	w.fences.unmapped(f, w.now())
	for i := range 2 {
		keys := make([]byte, 4096)
		if a := witness.exec(i, "READ KEYS", 0, prIn(0), nil, keys); a.ok && registered(keys[:a.got], f.key) {
			w.fail("%s is registered on node %s although it was unmapped", f.name, name(i))
		}
	}
	w.fences.unmapped(nil, 0)
	if err := c.mapHost(rng, w.shared, f.name); err != nil {
		w.fail("map: %v", err)
	}
}
