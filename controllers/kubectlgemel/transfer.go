package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Transfer moves LUNs to a node of their pair.
type Transfer struct {
	Client  client.Client
	Control Control
	Out     io.Writer

	To   string // "a" or "b"
	Hold time.Duration
}

// ErrTransfer: a LUN was not transferred; the text says why.
var ErrTransfer = errors.New("not transferred")

func (f *flags) transferCommand() *cobra.Command {
	x := &Transfer{}
	cmd := &cobra.Command{Use: "transfer LOGICALUNIT...", Short: "Move LUNs to a node of their pair, which is their home from then on", Args: cobra.MinimumNArgs(1),
		Long: `Transfer moves the LUNs of LogicalUnits to a node of their pair and makes it their home. For as long as --hold says, they go away
from it only if it fails or is drained, if their hosts can use only the other node, or if they are pinned to the other node. Where
spec.preferredNode of a LogicalUnit is set, it is the home again, and the LUN returns to it after that time.

It connects to the targets through the API server, and needs permission to read the Secret gemel-CLUSTER-control and to forward
ports of pods.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if x.Control, x.Client, err = f.control(); err != nil {
				return err
			}
			x.Out = cmd.OutOrStdout()
			return x.Run(cmd.Context(), args...)
		}}
	cmd.Flags().StringVar(&x.To, "to", "", "node to move the LUNs to: a or b")
	cmd.Flags().DurationVar(&x.Hold, "hold", 30*time.Minute, "how long the pair leaves the LUNs there, from 0s to 24h")
	return cmd
}

// Run transfers the LUNs of the LogicalUnits named, one after the other.
func (x *Transfer) Run(ctx context.Context, names ...string) error {
	if x.To != "a" && x.To != "b" {
		return fmt.Errorf("%w: --to is %q: it must be a or b", ErrTransfer, x.To)
	}
	hold, err := targetv1.HoldSeconds(x.Hold)
	if err != nil {
		return fmt.Errorf("%w: --hold: %w", ErrTransfer, err)
	}
	var errs []error
	for _, name := range names {
		if err := x.one(ctx, name, hold); err != nil {
			errs = append(errs, fmt.Errorf("%w: LogicalUnit %s: %w", ErrTransfer, name, err))
		}
	}
	return errors.Join(errs...)
}

func (x *Transfer) one(ctx context.Context, name string, hold *uint32) error {
	lu, p := &v1alpha1.LogicalUnit{}, &v1alpha1.TargetPair{}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: name}, lu); err != nil {
		return err
	}
	switch {
	case lu.Spec.Placement == nil:
		return errors.New("it has no LUN yet")
	case lu.Spec.Striped != nil:
		return fmt.Errorf("it is striped over %d LUNs: name those that are to move: kubectl get lun -l %s=%s", lu.Spec.Striped.LUNs, v1alpha1.LabelStriped, name)
	}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: lu.Spec.Placement.Pair}, p); err != nil {
		return err
	}
	req := &targetv1.TransferOwnershipRequest{LunUuids: []string{lu.Spec.Placement.UUID}, ToNode: x.To, HoldSeconds: hold}
	r, err := firstAnswer(ctx, x.Control, p, func(c targetv1.TargetServiceClient) (*targetv1.TransferOwnershipResponse, error) {
		return c.TransferOwnership(ctx, req)
	})
	if err != nil {
		return err
	}
	verb := "moved to"
	if r.Moved == 0 {
		verb = "already at"
	}
	home := ""
	if at := lu.Spec.PreferredNode; at != "" && at != x.To {
		home = fmt.Sprintf("; spec.preferredNode is %s, so the LUN returns to node %s later", at, at)
	}
	_, err = fmt.Fprintf(x.Out, "%s: %s node %s of pair %s; %s%s\n", name, verb, x.To, p.Name, r.Holds(), home)
	return err
}
