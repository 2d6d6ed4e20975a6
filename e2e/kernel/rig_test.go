package kernel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/vm"
)

// rig is a pair of real targets and the guests that use it.
type rig struct {
	dir     string
	lab     vm.Lab
	net     *network
	options harness.Options
	pair    *harness.Pair
	pairs   int // that there have been
	guests  []*vm.Guest
}

// newRig starts the pair; dir is where everything is kept, options change the pair's.
func newRig(ctx context.Context, dir, lab, target string, options ...func(*harness.Options)) (r *rig, err error) {
	r = &rig{dir: dir, lab: vm.Lab{Dir: lab}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.net, err = newNetwork(); err != nil {
		return r, err
	}
	if r.options, err = r.placed(target, harness.PairName, [4]string{portalPort, controlPort, linkPort, metricsPort}); err != nil {
		return r, err
	}
	for _, change := range options {
		change(&r.options)
	}
	return r, r.startPair(ctx)
}

// placed are the options of a pair on the rig's network, with the ports of portals, control, link
// and metrics.
func (r *rig) placed(target, name string, ports [4]string) (o harness.Options, err error) {
	o = harness.Options{Binary: target, Name: name}
	n := &harness.Network{Link: linkIP[0] + ports[2]}
	if o.PerNode, n.Credentials, err = harness.PKIFor(filepath.Join(r.dir, "pki-"+name), name); err != nil {
		return o, err
	}
	for i := range harness.Names {
		n.ISCSI[i], n.Control[i], n.Metrics[i] = portalIP[i]+ports[0], mgmtIP[i]+ports[1], mgmtIP[i]+ports[3]
		n.Enter[i] = r.net.nodes[i].Enter
	}
	o.Net = n
	return o, nil
}

// beside starts a second pair on the nodes of the first one, with a rig of its own.
func (r *rig) beside(ctx context.Context, target string) (*rig, error) {
	second := &rig{dir: filepath.Join(r.dir, "beside"), net: r.net}
	var err error
	if second.options, err = second.placed(target, "p1", [4]string{":3270", ":3271", ":3272", ":9101"}); err != nil {
		return nil, err
	}
	return second, second.startPair(ctx)
}

// startPair starts an empty pair. A second one has the name, portals and LUN numbers of the first,
// and other LUNs.
func (r *rig) startPair(ctx context.Context) (err error) {
	if r.pair != nil {
		if err := r.pair.Close(); err != nil {
			return err
		}
	}
	r.pairs++
	r.options.Dir = filepath.Join(r.dir, fmt.Sprintf("pair%d", r.pairs))
	if r.pair, err = harness.New(r.options); err != nil {
		return err
	}
	return r.pair.Start(ctx)
}

// guest clones one more worker.
func (r *rig) guest(ctx context.Context, name string) (*vm.Guest, error) {
	n := len(r.guests) + 1
	g, err := r.lab.Clone(ctx, vm.Options{Name: name, Number: n, Dir: r.dir, Bridges: bridges, Addresses: [2]string{guestIP(n, 0), guestIP(n, 1)}})
	if err == nil {
		r.guests = append(r.guests, g)
	}
	return g, err
}

// lun makes a LUN that the host may use.
func (r *rig) lun(ctx context.Context, host string, size uint64, owner string, chap *targetv1.CHAP) (*targetv1.LUN, *targetv1.Mapping, error) {
	c, id := r.pair.Client(0), uuid.NewString()
	l, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: size, PreferredNode: owner})
	if err != nil {
		return nil, nil, err
	}
	m, err := c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host, Chap: chap})
	return l, m, err
}

func (r *rig) close() (err error) {
	for _, g := range r.guests {
		g.Close()
	}
	if r.pair != nil {
		err = r.pair.Close()
	}
	if r.net != nil {
		r.net.close()
	}
	return err
}
