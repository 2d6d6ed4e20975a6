package kubectlgemel

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/human"
)

// Status prints clusters, their pairs and the workers, with the problems of each, and the group
// snapshots that are not Ready.
func Status(ctx context.Context, c client.Client, w io.Writer) error {
	clusters, pairs, groups, hosts := &v1alpha1.StorageClusterList{}, &v1alpha1.TargetPairList{}, &v1alpha1.LogicalUnitGroupSnapshotList{}, &v1alpha1.HostList{}
	for _, l := range []client.ObjectList{clusters, pairs, groups, hosts} {
		if err := withoutGroups(l, c.List(ctx, l)); err != nil {
			return err
		}
	}
	if len(clusters.Items) == 0 {
		fmt.Fprintln(w, "there is no StorageCluster: apply one (config/samples/storagecluster.yaml)")
	}
	for _, x := range clusters.Items {
		fmt.Fprintf(w, "cluster %s: %d pairs, %d InSync, %d LUNs, %v free of %v\n", x.Name, x.Status.Pairs, x.Status.ReadyPairs, x.Status.LogicalUnits, x.Status.Free, x.Status.Capacity)
		if len(x.Status.Pools) > 1 {
			for _, p := range x.Status.Pools {
				fmt.Fprintf(w, "  pool %s: %v free of %v%s\n", p.Name, p.Free, p.Capacity, promised(&p))
			}
		}
		for _, d := range x.Status.Domains {
			fmt.Fprintf(w, "  between %s: %d pairs, %d InSync\n", strings.Join(d.Between, " and "), d.Pairs, d.ReadyPairs)
		}
		printProblems(w, "  ", x.Status.Conditions)
		for _, p := range pairs.Items {
			if p.Spec.Cluster != x.Name {
				continue
			}
			fmt.Fprintf(w, "  pair %s: epoch %d, members %v, %d LUNs%s\n", p.Name, p.Status.Epoch, p.Status.Members, p.Status.LogicalUnits, pools(&p, len(x.Spec.Pools)))
			printProblems(w, "    ", p.Status.Conditions)
			printScrub(w, "    ", p.Status.Scrub, time.Now())
			for _, n := range p.Status.Nodes {
				fmt.Fprintf(w, "    node %s on %s: %s, owns %d", n.Name, worker(&p, n.Name), n.Phase, n.Owned)
				if n.ResyncPercent != nil {
					fmt.Fprintf(w, ", resync %d%%", *n.ResyncPercent)
				}
				if n.Reason != "" {
					fmt.Fprintf(w, ": %s", n.Reason)
				}
				fmt.Fprintln(w)
			}
			printDamage(w, "    ", p.Status.Damage)
			printOwnership(w, "    ", p.Status.Ownership)
			if n := len(p.Status.Orphans); n > 0 {
				fmt.Fprintf(w, "    %d LUNs without a LogicalUnit; nothing removes them, and kubectl gemel import creates the objects\n", n)
			}
		}
	}
	printGroups(w, groups.Items)
	for _, h := range hosts.Items {
		fmt.Fprintf(w, "worker %s: %s\n", h.Name, h.Spec.AttachMode)
		printProblems(w, "  ", h.Status.Conditions)
	}
	return nil
}

// withoutGroups ignores that a cluster has the CRDs of a release without group snapshots.
func withoutGroups(list client.ObjectList, err error) error {
	if _, groups := list.(*v1alpha1.LogicalUnitGroupSnapshotList); groups && meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

// printGroups prints group snapshots that are not Ready.
func printGroups(w io.Writer, list []v1alpha1.LogicalUnitGroupSnapshot) {
	for i := range list {
		if g := &list[i]; !meta.IsStatusConditionTrue(g.Status.Conditions, v1alpha1.ConditionReady) {
			fmt.Fprintf(w, "group snapshot %s: %d members, attempt %d\n", g.Name, len(g.Spec.Members), g.Status.Attempt)
			printProblems(w, "  ", g.Status.Conditions)
		}
	}
}

// printScrub prints the running scrub, the last result and the next time.
func printScrub(w io.Writer, indent string, s *v1alpha1.ScrubStatus, now time.Time) {
	if s == nil {
		return
	}
	if s.Active {
		fmt.Fprintf(w, "%sscrub (%s): %s of %s compared", indent, s.Origin, human.Size(uint64(s.DoneBytes)), human.Size(uint64(s.TotalBytes)))
		if s.EstimatedCompletion != nil {
			fmt.Fprintf(w, ", about %v left", max(0, s.EstimatedCompletion.Sub(now)).Round(time.Second))
		}
		fmt.Fprintf(w, ", %d ranges differed, %d repaired\n", s.MismatchedRanges, s.RepairedRanges)
	}
	if l := s.LastResult; l != nil {
		fmt.Fprintf(w, "%slast scrub: %s", indent, l.Result)
		if l.FinishedAt != nil {
			fmt.Fprintf(w, " %s", l.FinishedAt.UTC().Format(time.RFC3339))
		}
		if l.MismatchedRanges > 0 {
			fmt.Fprintf(w, ", %d ranges differed, %d repaired: see kubectl get events", l.MismatchedRanges, l.RepairedRanges)
		}
		if l.Reason != "" {
			fmt.Fprintf(w, ": %s", l.Reason)
		}
		fmt.Fprintln(w)
	}
	if s.NextAt != nil && !s.Active {
		fmt.Fprintf(w, "%snext scrub: %s\n", indent, s.NextAt.UTC().Format(time.RFC3339))
	}
}

// printDamage prints the damage that checksums have found, with the last location.
func printDamage(w io.Writer, indent string, list []v1alpha1.NodeDamage) {
	for _, d := range list {
		for _, x := range []struct {
			blocks int64
			what   string
			last   *v1alpha1.DamagedBlock
		}{{d.HealedBlocks, "damaged blocks healed from the other node", d.LastHealed}, {d.LostBlocks, "blocks lost (no node has a good copy: restore from a backup)", d.LastLost}} {
			if x.blocks == 0 {
				continue
			}
			fmt.Fprintf(w, "%snode %s: %d %s", indent, d.Node, x.blocks, x.what)
			if l := x.last; l != nil {
				fmt.Fprintf(w, ", last %s at byte %d of %s", l.Time.UTC().Format(time.RFC3339), l.Offset, cmp.Or(l.LogicalUnit, l.UUID))
			}
			fmt.Fprintln(w)
		}
	}
}

// promised is what is promised of a pool, if that is known.
func promised(x *v1alpha1.PoolStatus) string {
	if x.Promised == nil || x.Promisable == nil {
		return ""
	}
	return fmt.Sprintf(", %v promised of at most %v", x.Promised, x.Promisable)
}

// pools of a pair with their free space, if there are several.
func pools(p *v1alpha1.TargetPair, several int) (text string) {
	if several < 2 {
		return ""
	}
	for _, x := range p.Status.Pools {
		text += fmt.Sprintf(", %v free in %s", x.Free, x.Name)
	}
	return text
}

func worker(p *v1alpha1.TargetPair, node string) string {
	for _, n := range p.Spec.Nodes {
		if n.Name == node && n.Worker != "" {
			return n.Worker
		}
	}
	return "no worker yet"
}

// printProblems prints conditions that are not true.
func printProblems(w io.Writer, indent string, conditions []metav1.Condition) {
	if len(conditions) == 0 {
		fmt.Fprintf(w, "%sthere are no conditions yet: check that the operator runs\n", indent)
	}
	for _, c := range conditions {
		if !meta.IsStatusConditionTrue(conditions, c.Type) {
			fmt.Fprintf(w, "%snot %s (%s): %s\n", indent, c.Type, c.Reason, c.Message)
		}
	}
}
