package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

func (a *admin) endQuarantine() *cobra.Command {
	return &cobra.Command{Use: "end-quarantine UUID...", Short: "Let hosts use LUNs again whose commands ended processes of nodes", Args: cobra.MinimumNArgs(1),
		Long: `End-quarantine lets hosts use LUNs again that the pair has quarantined, because their commands ended two processes within a minute.
First stop what uses the LUN, or upgrade the nodes to a release without the defect: a host that repeats the command ends the
processes again, and the LUN is quarantined again.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				var errs []error
				for _, uuid := range args {
					if _, err := c.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: uuid, EndQuarantine: true}); err != nil {
						errs = append(errs, fmt.Errorf("LUN %s: %w", uuid, err))
						continue
					}
					fmt.Fprintf(cmd.OutOrStdout(), "LUN %s: hosts can use it again\n", uuid)
				}
				return errors.Join(errs...)
			})
		}}
}
