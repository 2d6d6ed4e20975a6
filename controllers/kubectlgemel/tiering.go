package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/internal/tierview"
)

// Tiering shows what lies on which tier of the pools, what the tiers do for hosts, and what has
// moved and why.
type Tiering struct {
	Client  client.Client
	Control Control
	Out     io.Writer

	Moves int // of each node, the last ones
}

// ErrTiering: the tiers could not be shown; the text says why.
var ErrTiering = errors.New("tiering")

func (f *flags) tieringCommand() *cobra.Command {
	x := &Tiering{}
	claim := ""
	cmd := &cobra.Command{Use: "tiering [PAIR...]", Short: "Show what the tiers of pools do, and what has moved and why; with --claim how a volume is used",
		Long: `Tiering shows, for each node of the pairs, the tiers of its pools: how many of the reads that missed the page cache each tier has
served, and in how much of the time; and the last extents of 4 MiB that have moved between the tiers, with reasons. With --claim it
shows one volume from its beginning to its end: how much each part is used, and what of it lies on the fast tier of each node.

It connects to the targets through the API server, and needs permission to read the Secret gemel-CLUSTER-control and to forward
ports of pods.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if x.Moves < 0 || x.Moves > 256 {
				return fmt.Errorf("--moves: %d is not from 0 to 256", x.Moves)
			}
			if claim != "" && len(args) > 0 {
				return errors.New("--claim: a claim names its pair: leave PAIR out")
			}
			if x.Control, x.Client, err = f.control(); err != nil {
				return err
			}
			x.Out = cmd.OutOrStdout()
			if claim == "" {
				return x.Run(cmd.Context(), args...)
			}
			_, ns, err := f.config()
			if err != nil {
				return err
			}
			return x.Claim(cmd.Context(), ns, claim)
		}}
	cmd.Flags().StringVar(&claim, "claim", "", "name of a PersistentVolumeClaim in the namespace of -n")
	cmd.Flags().IntVar(&x.Moves, "moves", 5, "how many of the last moves of each node to show, 0 to 256")
	return cmd
}

// Run shows the tiers of the pairs named, or of all.
func (x *Tiering) Run(ctx context.Context, names ...string) error {
	list, err := pairsNamed(ctx, x.Client, names)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTiering, err)
	}
	var errs []error
	for _, p := range list {
		for _, node := range pair.Nodes {
			r, err := x.ask(ctx, p, node, "")
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: %s, node %s: %w", ErrTiering, p.Name, node, err))
				continue
			}
			x.print(p, node, r)
		}
	}
	return errors.Join(errs...)
}

func (x *Tiering) ask(ctx context.Context, p *v1alpha1.TargetPair, node, lun string) (*targetv1.GetTieringResponse, error) {
	c, stop, err := x.Control(ctx, p, node)
	if err != nil {
		return nil, err
	}
	defer stop()
	return c.GetTiering(ctx, &targetv1.GetTieringRequest{LunUuid: lun})
}

func (x *Tiering) print(p *v1alpha1.TargetPair, node string, r *targetv1.GetTieringResponse) {
	var b strings.Builder
	if len(r.Volumes) == 0 {
		fmt.Fprintf(&b, "%s, node %s: no pool has volumes of two tiers\n", p.Name, node)
	}
	for _, v := range r.Volumes {
		fmt.Fprintf(&b, "%s, node %s, pool %s, tiering %s\n", p.Name, node, x.pool(p, v.Volume), r.Mode)
		tierview.Volume(&b, v)
	}
	for _, m := range r.Moves[max(0, len(r.Moves)-x.Moves):] {
		fmt.Fprintf(&b, "  %s  %s\n", m.Time.AsTime().Format(time.RFC3339), tierview.Move(m))
	}
	_, _ = io.WriteString(x.Out, b.String())
}

// pool is the name of a volume's pool, as far as the status of the pair tells: the first pool has a
// name of its own.
func (x *Tiering) pool(p *v1alpha1.TargetPair, volume string) string {
	if volume == v1alpha1.DefaultVolume && len(p.Status.Pools) > 0 {
		return p.Status.Pools[0].Name
	}
	return volume
}

// Claim shows how the volume of a claim is used; of a striped volume each LUN.
func (x *Tiering) Claim(ctx context.Context, namespace, name string) error {
	fail := func(err error) error { return fmt.Errorf("%w: claim %s/%s: %w", ErrTiering, namespace, name, err) }
	pvc := &corev1.PersistentVolumeClaim{}
	if err := x.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pvc); err != nil {
		return fail(err)
	}
	if pvc.Spec.VolumeName == "" {
		return fail(errors.New("it has no volume yet: see kubectl gemel why " + name))
	}
	pv := &corev1.PersistentVolume{}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); err != nil {
		return fail(err)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return fail(fmt.Errorf("its volume %s is not of Gemel", pv.Name))
	}
	if err := x.lun(ctx, pv.Spec.CSI.VolumeHandle); err != nil {
		return fail(err)
	}
	return nil
}

func (x *Tiering) lun(ctx context.Context, name string) error {
	lu := &v1alpha1.LogicalUnit{}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: name}, lu); err != nil {
		return err
	}
	if s := lu.Spec.Striped; s != nil {
		var errs []error
		for i := range int(s.LUNs) {
			errs = append(errs, x.lun(ctx, v1alpha1.LegName(name, i)))
		}
		return errors.Join(errs...)
	}
	if lu.Spec.Placement == nil {
		return errors.New("it has no LUN yet")
	}
	p := &v1alpha1.TargetPair{}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: lu.Spec.Placement.Pair}, p); err != nil {
		return err
	}
	var errs []error
	for _, node := range pair.Nodes {
		r, err := x.ask(ctx, p, node, lu.Spec.Placement.UUID)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s of %s: %w", node, p.Name, err))
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s, node %s%s: ", p.Name, node, map[bool]string{true: " (owner)"}[lu.Status.Owner == node])
		tierview.Heat(&b, r.Heat)
		if _, err := io.WriteString(x.Out, b.String()); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
