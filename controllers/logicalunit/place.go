package logicalunit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/tally"
	"github.com/gemel-storage/gemel/placement"
)

// source is the LUN or snapshot that a LUN is a copy of.
type source struct {
	pair, pool, lun, snapshot string
	legPairs                  []v1alpha1.LegPair // of a striped volume on several pairs
}

// source reads the source without the cache: a clone is often requested right after the creation of
// its source.
func (p *pass) source(ctx context.Context) (s source, err error) {
	q := p.lu.Spec.Source
	switch {
	case q == nil:
		return s, nil
	case q.Snapshot != "":
		o := &v1alpha1.LogicalUnitSnapshot{}
		if err := p.readSource(ctx, o, "LogicalUnitSnapshot", q.Snapshot); err != nil {
			return s, err
		}
		if o.Spec.Placement == nil || !object.IsMade(o) {
			return s, finding.Wait(v1alpha1.ReasonProgressing, "the snapshot %s is being taken", q.Snapshot)
		}
		if err := p.sameLayout("snapshot", q.Snapshot, o.Spec.Striped, o.Spec.Leg); err != nil {
			return s, err
		}
		at := o.Spec.Placement
		return source{pair: at.Pair, pool: at.Pool, snapshot: at.UUID, legPairs: at.LegPairs}, nil
	}
	o := &v1alpha1.LogicalUnit{}
	if err := p.readSource(ctx, o, "LogicalUnit", q.LogicalUnit); err != nil {
		return s, err
	}
	if err := p.sameLayout("logicalUnit", q.LogicalUnit, o.Spec.Striped, o.Spec.Leg); err != nil {
		return s, err
	}
	if o.Spec.Placement == nil || !object.IsMade(o) {
		return s, finding.Wait(v1alpha1.ReasonProgressing, "the source %s is being created", q.LogicalUnit)
	}
	at := o.Spec.Placement
	return source{pair: at.Pair, pool: at.Pool, lun: at.UUID, legPairs: at.LegPairs}, nil
}

func (p *pass) readSource(ctx context.Context, o client.Object, kind, name string) error {
	err := p.Live.Get(ctx, client.ObjectKey{Name: name}, o)
	if apierrors.IsNotFound(err) {
		return finding.New(v1alpha1.ReasonNoSource, "%s %s, the source of this copy, does not exist", kind, name)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return nil
}

// place records the pair and the UUID of the LUN, once and together with the finalizer, before the
// first request to the pair: after a crash the same LUN is requested from the same pair. The UUID
// is that of the object, so that a later object of the same name is another LUN, with another WWID.
func (p *pass) place(ctx context.Context) error {
	switch {
	case p.lu.Spec.Placement != nil:
		return nil
	case p.deleted():
		return object.RemoveFinalizer(ctx, p, &p.lu) // no LUN was created; if the cache is stale, the update fails with a conflict
	case p.lu.Spec.Destroy:
		return finding.New(v1alpha1.ReasonInvalid, "spec.destroy is set, so no LUN is created: delete the object")
	case p.lu.Spec.Leg != nil:
		return p.placeLeg(ctx)
	}
	s, err := p.source(ctx)
	if err != nil {
		return err
	}
	spec, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	pool, err := p.pool(spec, s)
	if err != nil {
		return err
	}
	list, err := p.candidates(ctx, spec, s.pair)
	if err != nil {
		return err
	}
	req := placement.Request{Cluster: p.lu.Spec.Cluster, Pool: pool, Size: p.lu.Spec.Size.Value(), SourcePair: s.pair, Consumer: p.consumer(ctx)}
	if req.Consumer.Known() {
		p.locate(ctx, list)
	}
	choice, legPairs, err := p.reserve(ctx, spec, list, req, s)
	switch {
	case errors.Is(err, placement.ErrNotReady):
		return finding.Wait(v1alpha1.ReasonPairDown, "%v", err)
	case errors.Is(err, placement.ErrNoPair) && s.pair == "" && len(list) == 0:
		return p.noPair(ctx)
	case errors.Is(err, placement.ErrNoPair) && p.overPairs():
		return finding.New(v1alpha1.ReasonInvalid, "spec.spread: %v: add a pair, or use a StorageClass whose parameters.%s is %s", err, v1alpha1.ParamSpread, v1alpha1.OverNodes)
	case errors.Is(err, placement.ErrNoPair):
		return finding.New(v1alpha1.ReasonInvalid, "spec.cluster: %v", err)
	case err != nil:
		return finding.New(v1alpha1.ReasonNoRoom, "%v: add a pair, make the disks larger, or raise overcommitPercent if that is what refuses it", err)
	}
	return p.writePlacement(ctx, pool, choice, legPairs)
}

// overPairs reports whether the volume is striped over several pairs.
func (p *pass) overPairs() bool { return p.lu.Spec.Spread == v1alpha1.LegsOverPairs }

// reserve chooses the places of the LUN and counts them as promised, both before another LUN is
// placed: LUNs that are created at the same time would all be given the same last bytes.
func (p *pass) reserve(ctx context.Context, spec *v1alpha1.StorageClusterSpec, pairs []placement.Pair, req placement.Request, s source) (placement.Choice, []v1alpha1.LegPair, error) {
	p.placing.Lock()
	defer p.placing.Unlock()
	t, follows := p.Tally.(*tally.Tally)
	if follows {
		t.Release(p.lu.UID) // of an earlier pass, whose write has failed
	}
	for i := range pairs {
		n, err := p.counter().Of(ctx, pairs[i].Name)
		if err != nil {
			return placement.Choice{}, nil, err
		}
		pairs[i].LUNs, pairs[i].Owned = max(pairs[i].LUNs, n.LUNs), n.Owned
		promise(spec, &pairs[i], n.Promised)
	}
	choice, legPairs, err := p.chooseAll(ctx, pairs, req, s)
	if err == nil && follows {
		t.Reserve(p.lu, p.placementAt(req.Pool, choice, legPairs))
	}
	return choice, legPairs, err
}

// chooseAll chooses the pair, and for a striped volume on several pairs that of each leg. The legs
// of a copy are where those of its source are, because they share extents with them.
func (p *pass) chooseAll(ctx context.Context, pairs []placement.Pair, req placement.Request, s source) (placement.Choice, []v1alpha1.LegPair, error) {
	switch {
	case p.overPairs() && s.pair != "" && s.legPairs == nil:
		return placement.Choice{}, nil, fmt.Errorf("%w: the source is on pair %s alone, and a copy is where its source is", placement.ErrNoPair, s.pair)
	case p.overPairs() && s.pair == "":
		choice, on, err := placement.Legs(pairs, req, int(p.lu.Spec.Striped.LUNs))
		return choice, v1alpha1.LegPairsOf(on), err
	}
	choice, err := p.choose(ctx, pairs, req)
	if err == nil && s.legPairs != nil {
		choice.Reason = fmt.Sprintf("each of the %d LUNs is on the pair of its part of the source; first of all %s", len(s.legPairs), choice.Reason)
	}
	return choice, s.legPairs, err
}

// writePlacement records a choice with its reason. The reason is in an annotation as well as in an
// event: events are gone after an hour.
func (p *pass) writePlacement(ctx context.Context, pool string, choice placement.Choice, legPairs []v1alpha1.LegPair) error {
	reason := choice.Reason
	if node := p.lu.Spec.PreferredNode; node != "" {
		reason += "; spec.preferredNode makes node " + node + " the home"
	}
	reason = v1alpha1.ErrorText(reason)
	err := object.Patch(ctx, p, &p.lu, "placement", func(lu *v1alpha1.LogicalUnit) {
		controllerutil.AddFinalizer(lu, v1alpha1.Finalizer)
		if lu.Annotations == nil {
			lu.Annotations = map[string]string{}
		}
		lu.Annotations[v1alpha1.AnnotationPlaced] = reason
		lu.Spec.Placement = p.placementAt(pool, choice, legPairs)
	})
	if err == nil {
		if t, ok := p.Tally.(*tally.Tally); ok {
			t.Set(p.lu) // the next placement does not wait for the event
		}
		p.Recorder.Eventf(p.lu, nil, corev1.EventTypeNormal, v1alpha1.ReasonPlaced, "Place", "%s", reason)
	}
	return err
}

func (p *pass) placementAt(pool string, choice placement.Choice, legPairs []v1alpha1.LegPair) *v1alpha1.Placement {
	return &v1alpha1.Placement{Pair: choice.Pair, Pool: pool, Home: choice.Home, LegPairs: legPairs, UUID: string(p.lu.UID)}
}

// noPair says why a cluster has no pair: the StorageCluster does not exist, or its pairs are not
// created yet.
func (p *pass) noPair(ctx context.Context) error {
	name := p.lu.Spec.Cluster
	switch err := p.Live.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.StorageCluster{}); {
	case apierrors.IsNotFound(err):
		return finding.New(v1alpha1.ReasonInvalid, "spec.cluster: StorageCluster %s does not exist: create it, or name another StorageCluster in the StorageClass (parameters.%s)", name, v1alpha1.ParamCluster)
	case err != nil:
		return fmt.Errorf("StorageCluster %s: %w", name, err)
	}
	return finding.Wait(v1alpha1.ReasonPairDown, "StorageCluster %s has no pair yet: its conditions say why", name)
}

// statusLimit bounds the call for the free space of a pair.
const statusLimit = 3 * time.Second

// candidates are the pairs of the cluster, or only that of the source, with values read from the
// pairs: TargetPair.status may be stale.
func (p *pass) candidates(ctx context.Context, spec *v1alpha1.StorageClusterSpec, only string) ([]placement.Pair, error) {
	var pairs v1alpha1.TargetPairList
	if err := p.List(ctx, &pairs); err != nil {
		return nil, fmt.Errorf("TargetPairs: %w", err)
	}
	var out []placement.Pair
	for i := range pairs.Items {
		if o := &pairs.Items[i]; o.Spec.Cluster == p.lu.Spec.Cluster && (only == "" || o.Name == only) {
			out = append(out, placement.FromObject(o, 0))
		}
	}
	// A pair that is known to be down is not asked while another one is not: each LUN would wait
	// for it. When it is back, its TargetPair says so, and LUNs without a place are reconciled
	// again.
	serves := slices.ContainsFunc(out, func(c placement.Pair) bool { return c.Ready })
	var all sync.WaitGroup
	for i := range out {
		if out[i].Ready || !serves {
			all.Go(func() { p.readStatus(ctx, spec, &out[i]) })
		}
	}
	all.Wait()
	return out, nil
}

// promise notes what is promised of the pools of a pair, and how much may be. Placements of earlier
// releases do not name the first pool.
func promise(spec *v1alpha1.StorageClusterSpec, c *placement.Pair, promised map[string]int64) {
	for i := range c.Pools {
		x := &c.Pools[i]
		x.Promised, x.Promisable = 0, 0
		if pool := spec.Pool(x.Name); pool != nil {
			x.Promisable = pool.PromisableOf(x.Capacity)
		}
	}
	for pool, bytes := range promised {
		if x := c.Pool(spec.PoolName(pool)); x != nil {
			x.Promised += bytes
		}
	}
}

// counter tells what is placed on pairs.
func (r *Reconciler) counter() tally.Counter {
	return tally.Or(r.Tally, r.Client)
}

// readStatus replaces the values of a pair's object by those that the pair reports.
func (p *pass) readStatus(ctx context.Context, spec *v1alpha1.StorageClusterSpec, c *placement.Pair) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	pair, err := p.Pairs.Client(ctx, c.Name)
	if err != nil {
		c.Ready = false
		return
	}
	s, err := pair.Serving(ctx)
	if err != nil {
		c.Ready = false
		return
	}
	c.Ready, c.InSync = true, s.Phase == targetv1.Phase_PHASE_IN_SYNC
	c.Pools = nil
	for _, v := range s.Volumes {
		if len(v.Lacks) == 0 {
			c.Pools = append(c.Pools, placement.Pool{Name: spec.PoolOf(v.Name), Capacity: int64(v.CapacityBytes), Free: int64(v.FreeBytes)})
		}
	}
	if len(s.Volumes) == 0 { // a target of an earlier release
		c.Pools = []placement.Pool{{Name: spec.PoolOf(""), Capacity: int64(s.CapacityBytes), Free: int64(s.FreeBytes)}}
	}
}
