package pair

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Damaged blocks are healed by the nodes (R15 in docs/pair.md); here people are told. The status of the TargetPair is the memory: it says up to
// which finding of which process of a node everything is counted, and it is written, against the version that was read, before an event is
// made. So two operators, or one that starts again, do not tell the same finding twice. One that ends between the two has counted what no
// event tells: the numbers and the last place are in the status.

var damagedBlocks = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_targetpair_damaged_blocks_total",
	Help: "Blocks of 4 KiB that did not match their checksums, as the nodes have told this operator since it started: healed from the other node, or lost (no node has a good copy)."},
	[]string{"pair", "node", "outcome"})

func init() { metrics.Registry.MustRegister(damagedBlocks) }

// damageNews is what is new of one LUN or snapshot at one node, or of several of which the node does not say any more which.
type damageNews struct {
	node   string
	uuid   string // empty: several
	lost   bool
	blocks int64
	first  int64 // offset in bytes of the first one
	lu     *v1alpha1.LogicalUnit
}

// freshDamage is what a node has found since what is counted, put together by LUN, in the order in which the node lists it; and the findings themselves.
func freshDamage(counted v1alpha1.DamageCounted, node string, c *targetv1.Checksums) (news []damageNews, fresh []*targetv1.DamageFinding) {
	if counted.Process != c.Process {
		counted = v1alpha1.DamageCounted{} // another process: its counters began at zero
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

// damage counts what the nodes have found since the last time, and says what people have to be told. A node that does not answer keeps its
// numbers.
func (r *Reconciler) damage(ctx context.Context, p *v1alpha1.TargetPair, v *view) (next []v1alpha1.NodeDamage, news []damageNews) {
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

// recordDamage makes events and counts of what is written down now: one for each LUN and node, however many blocks.
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

// text for people.
func (x *damageNews) text() string {
	where := "LUNs that only the log of its pod names"
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
	return fmt.Sprintf("node %s: %s of %s did not match the checksums and were written again from the other node; if that happens again, replace the disk of node %s", x.node, blocks, where, x.node)
}

// units are the LogicalUnits of a pair by uuid.
func (r *Reconciler) units(ctx context.Context, p *v1alpha1.TargetPair) map[string]*v1alpha1.LogicalUnit {
	l := &v1alpha1.LogicalUnitList{}
	out := map[string]*v1alpha1.LogicalUnit{}
	if r.List(ctx, l, client.MatchingFields{v1alpha1.FieldPair: p.Name}) != nil {
		return out // the uuid is enough
	}
	for i := range l.Items {
		if at := l.Items[i].Spec.Placement; at != nil && at.Pair == p.Name {
			out[at.UUID] = &l.Items[i]
		}
	}
	return out
}
