package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// EndQuarantine lets hosts use LUNs again whose commands ended processes of their pair.
type EndQuarantine struct {
	Client  client.Client
	Control Control
	Out     io.Writer
}

// ErrQuarantine: the quarantine of a LUN was not ended; the text says why.
var ErrQuarantine = errors.New("the quarantine is not ended")

func (f *flags) endQuarantineCommand() *cobra.Command {
	x := &EndQuarantine{}
	return &cobra.Command{Use: "end-quarantine LOGICALUNIT...", Short: "Let hosts use LUNs again whose commands ended processes of their pair", Args: cobra.MinimumNArgs(1),
		Long: `A pair executes no command of hosts any more for a LUN whose commands ended two processes within a minute: the LogicalUnit is
not Ready, with the reason Quarantined. End-quarantine lets hosts use the LUN again. First stop the pods that use it, or upgrade
to a release without the defect: a host that repeats the command ends the processes again, and the LUN is quarantined again.

It connects to the targets through the API server, and needs permission to read the Secret gemel-CLUSTER-control and to forward
ports of pods.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if x.Control, x.Client, err = f.control(); err != nil {
				return err
			}
			x.Out = cmd.OutOrStdout()
			return x.Run(cmd.Context(), args...)
		}}
}

// Run ends the quarantine of the LUNs of the LogicalUnits named; of a striped volume, of all its
// legs.
func (x *EndQuarantine) Run(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		if err := x.one(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("%w: LogicalUnit %s: %w", ErrQuarantine, name, err))
		}
	}
	return errors.Join(errs...)
}

func (x *EndQuarantine) one(ctx context.Context, name string) error {
	lu := &v1alpha1.LogicalUnit{}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: name}, lu); err != nil {
		return err
	}
	if s := lu.Spec.Striped; s != nil {
		for i := range int(s.LUNs) {
			if err := x.one(ctx, v1alpha1.LegName(name, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if lu.Spec.Placement == nil {
		return errors.New("it has no LUN yet")
	}
	p := &v1alpha1.TargetPair{}
	if err := x.Client.Get(ctx, client.ObjectKey{Name: lu.Spec.Placement.Pair}, p); err != nil {
		return err
	}
	req := &targetv1.ModifyLUNRequest{Uuid: lu.Spec.Placement.UUID, EndQuarantine: true}
	if _, err := firstAnswer(ctx, x.Control, p, func(c targetv1.TargetServiceClient) (*targetv1.LUN, error) { return c.ModifyLUN(ctx, req) }); err != nil {
		return err
	}
	_, err := fmt.Fprintf(x.Out, "%s: hosts can use it again\n", name)
	return err
}
