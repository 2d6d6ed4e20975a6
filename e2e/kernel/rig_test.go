package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	o := harness.Options{Binary: target}
	n := &harness.Network{Link: linkIP[0] + linkPort}
	pki := filepath.Join(dir, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return r, err
	}
	if o.PerNode, n.Credentials, err = harness.PKI(pki); err != nil {
		return r, err
	}
	for i := range harness.Names {
		n.ISCSI[i], n.Control[i], n.Metrics[i] = portalIP[i]+portalPort, mgmtIP[i]+controlPort, mgmtIP[i]+metricsPort
		n.Enter[i] = r.net.nodes[i].Enter
	}
	o.Net = n
	for _, change := range options {
		change(&o)
	}
	r.options = o
	return r, r.startPair(ctx)
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
