package scale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Create measures how long it takes to make LUNs and to map each to two hosts, on a new pair.
func Create(ctx context.Context, o Options) (took time.Duration, err error) {
	p, err := harness.New(harness.Options{Dir: o.Dir, Binary: o.Binary, Args: []string{"--log-level", "warn"}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Start(ctx); err != nil {
		return 0, err
	}
	r := Result{LUNs: o.LUNs}
	err = r.create(ctx, p, max(o.Callers, 1))
	return r.Creation, err
}

func (r *Result) create(ctx context.Context, p *harness.Pair, callers int) error {
	begun := time.Now()
	for h := range r.hosts {
		r.hosts[h] = make([]*targetv1.Mapping, r.LUNs)
	}
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < r.LUNs && errs[c] == nil; i += callers {
				errs[c] = r.createOne(ctx, p, i)
			}
		})
	}
	wg.Wait()
	r.Creation = time.Since(begun)
	return errors.Join(errs...)
}

func (r *Result) createOne(ctx context.Context, p *harness.Pair, i int) error {
	id := uuid.NewString()
	req := &targetv1.CreateLUNRequest{Uuid: id, Name: fmt.Sprintf("lun-%d", i), SizeBytes: lunSize, PreferredNode: "a"}
	if err := insist(ctx, p, func(c targetv1.TargetServiceClient) error { _, err := c.CreateLUN(ctx, req); return err }); err != nil {
		return err
	}
	for h := range r.hosts {
		req := &targetv1.MapHostRequest{LunUuid: id, HostIqn: fmt.Sprint(hostIQN, h)}
		if err := insist(ctx, p, func(c targetv1.TargetServiceClient) (err error) { r.hosts[h][i], err = c.MapHost(ctx, req); return err }); err != nil {
			return err
		}
	}
	return nil
}
