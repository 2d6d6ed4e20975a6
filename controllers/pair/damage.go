package pair

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
)

// The nodes heal damaged blocks (R15 in docs/pair.md); the operator reports them. The status of the
// TargetPair records up to which finding of which process of a node everything is counted. It is
// updated, with a check of the resource version, before an event is recorded, so that two
// operators, or one that restarts, do not report a finding twice. If the operator ends between the
// update and the event, the event is lost, but the counts and the last location are in the status.

var damagedBlocks = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_targetpair_damaged_blocks_total",
	Help: "Blocks of 4 KiB that did not match their checksums, as reported by the nodes since this operator started: healed from the other node, or lost (no node has a good copy)."},
	[]string{"pair", "node", "outcome"})

func init() { metrics.Registry.MustRegister(damagedBlocks) }

// damageNews is the new damage of one LUN or snapshot on one node, or of several LUNs that the node
// no longer names.
type damageNews struct {
	node   string
	uuid   string // empty: several
	lost   bool
	blocks int64
	first  int64 // offset of the first block, in bytes
	lu     *v1alpha1.LogicalUnit
}

// freshDamage returns what a node has found since the last count: by LUN, in the order of the
// node's list, and the findings themselves.
func freshDamage(counted v1alpha1.DamageCounted, node string, c *targetv1.Checksums) (news []damageNews, fresh []*targetv1.DamageFinding) {
	if counted.Process != c.Process {
		counted = v1alpha1.DamageCounted{} // a restarted process counts from zero
	}
	left := map[bool]int64{false: int64(c.HealedBlocks) - counted.HealedBlocks, true: int64(c.LostBlocks) - counted.LostBlocks}
	add := func(x damageNews) {
		left[x.lost] -= x.blocks
		if i := slices.IndexFunc(news, func(y damageNews) bool { return y.uuid == x.uuid && y.lost == x.lost }); i >= 0 {
			news[i].blocks += x.blocks
			return
		}
		news = append(news, x)
	}
	for _, f := range c.Findings {
		if int64(f.Number) > counted.Findings {
			fresh = append(fresh, f)
			add(damageNews{node: node, uuid: f.Uuid, lost: f.Lost, blocks: int64(f.Blocks), first: int64(f.Offset)})
		}
	}
	for _, lost := range []bool{false, true} {
		if left[lost] > 0 {
			add(damageNews{node: node, lost: lost, blocks: left[lost]})
		}
	}
	return news, fresh
}

// countDamage adds what the nodes have found since the last reconcile, and returns what to report.
// A node that does not answer keeps its numbers.
func (r *Reconciler) countDamage(ctx context.Context, p *v1alpha1.TargetPair, v *view) (next []v1alpha1.NodeDamage, news []damageNews) {
	next = slices.Clone(p.Status.Damage)
	var units map[string]*v1alpha1.LogicalUnit
	for i := range v.nodes {
		n := &v.nodes[i]
		c := n.status.GetChecksums()
		if c == nil {
			continue
		}
		at := slices.IndexFunc(next, func(d v1alpha1.NodeDamage) bool { return d.Node == n.name })
		d := v1alpha1.NodeDamage{Node: n.name}
		if at >= 0 {
			d = *next[at].DeepCopy()
		}
		found, fresh := freshDamage(d.Counted, n.name, c)
		if len(found) == 0 {
			continue
		}
		if units == nil {
			units = r.units(ctx, p)
		}
		for k := range found {
			x := &found[k]
			x.lu = units[x.uuid]
			if x.lost {
				d.LostBlocks += x.blocks
			} else {
				d.HealedBlocks += x.blocks
			}
		}
		d.Counted = v1alpha1.DamageCounted{Process: c.Process, Findings: d.Counted.Findings, HealedBlocks: int64(c.HealedBlocks), LostBlocks: int64(c.LostBlocks)}
		for _, f := range fresh {
			b := &v1alpha1.DamagedBlock{UUID: f.Uuid, Offset: int64(f.LastOffset), Time: metav1.Unix(f.Time.GetSeconds(), 0)}
			if lu := units[f.Uuid]; lu != nil {
				b.LogicalUnit = lu.Name
			}
			if d.Counted.Findings = int64(f.Number); f.Lost {
				d.LastLost = b
			} else {
				d.LastHealed = b
			}
		}
		if at < 0 {
			next = append(next, d)
		} else {
			next[at] = d
		}
		news = append(news, found...)
	}
	slices.SortFunc(next, func(x, y v1alpha1.NodeDamage) int { return int(x.Node[0]) - int(y.Node[0]) })
	return next, news
}

// recordDamage records events and metrics of damage that is in the status now: one event for each
// LUN and node, whatever the number of blocks.
func (r *Reconciler) recordDamage(p *v1alpha1.TargetPair, news []damageNews) {
	for _, x := range news {
		kind, reason, outcome, what := corev1.EventTypeNormal, v1alpha1.ReasonBlocksHealed, "healed", x.text()
		if x.lost {
			kind, reason, outcome = corev1.EventTypeWarning, v1alpha1.ReasonBlocksLost, "lost"
		}
		damagedBlocks.WithLabelValues(p.Name, x.node, outcome).Add(float64(x.blocks))
		r.recordEvent(p, kind, reason, "Heal", what)
		if x.lu != nil {
			r.Events.Eventf(x.lu, p, kind, reason, "Heal", "%s", what)
		}
	}
}

func (x *damageNews) text() string {
	where := "LUNs that only the log of the pod names"
	if x.uuid != "" {
		where = "LUN or snapshot " + x.uuid
		if x.lu != nil {
			where += " (" + x.lu.Name + ")"
		}
		where += fmt.Sprintf(", the first at byte %d,", x.first)
	}
	blocks := "1 block of 4 KiB"
	if x.blocks != 1 {
		blocks = fmt.Sprintf("%d blocks of 4 KiB", x.blocks)
	}
	if x.lost {
		return fmt.Sprintf("node %s: %s of %s did not match the checksums, and no node has a good copy: restore the file or the volume from a backup", x.node, blocks, where)
	}
	return fmt.Sprintf("node %s: %s of %s did not match the checksums and were healed from the other node; if this happens again, replace the disk of node %s", x.node, blocks, where, x.node)
}

// units returns the LogicalUnits of a pair by UUID, from the cache: they must not be changed.
func (r *Reconciler) units(ctx context.Context, p *v1alpha1.TargetPair) map[string]*v1alpha1.LogicalUnit {
	out := map[string]*v1alpha1.LogicalUnit{}
	list, err := index.Units(ctx, r.Client, index.UnitPair, p.Name)
	if err != nil {
		return out // events name the UUID only
	}
	for i := range list {
		if at := list[i].Spec.Placement; at.On(p.Name) {
			out[at.UUID] = &list[i]
		}
	}
	return out
}
