package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/tierview"
)

func (a *admin) tiering() *cobra.Command {
	var format string
	req := &targetv1.GetTieringRequest{}
	cmd := &cobra.Command{Use: "tiering", Short: "Show what lies on which tier of a node's backing volumes, and what has moved", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return fmt.Errorf("--output: %q must be text or json", format)
			}
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				r, err := c.GetTiering(ctx, req)
				if err != nil {
					return err
				}
				if format == "json" {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), protojson.Format(r))
					return err
				}
				return printTiering(cmd.OutOrStdout(), r)
			})
		}}
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text or json")
	cmd.Flags().StringVar(&req.LunUuid, "lun", "", "uuid of a LUN whose heat to show, from its beginning to its end")
	return cmd
}

// tierMovesShown are the last moves in the text; all that are kept are in the JSON.
const tierMovesShown = 10

func printTiering(w io.Writer, r *targetv1.GetTieringResponse) error {
	var b strings.Builder
	fmt.Fprintf(&b, "tiering %s\n", r.Mode)
	if len(r.Volumes) == 0 {
		b.WriteString("no backing volume of this node has members of two tiers (--tier)\n")
	}
	for _, v := range r.Volumes {
		fmt.Fprintf(&b, "\n%s\n", v.Volume)
		tierview.Volume(&b, v)
	}
	if len(r.Moves) > 0 {
		b.WriteString("\n")
	}
	for _, m := range r.Moves[max(0, len(r.Moves)-tierMovesShown):] {
		fmt.Fprintf(&b, "%s  %s\n", m.Time.AsTime().Format(time.RFC3339), tierview.Move(m))
	}
	if r.Heat != nil {
		b.WriteString("\n")
		tierview.Heat(&b, r.Heat)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (a *admin) pinTier() *cobra.Command {
	return &cobra.Command{Use: "pin-tier TIER UUID...", Short: "Keep LUNs on a tier of their backing volumes: fast, capacity or none", Args: cobra.MinimumNArgs(2),
		Long: `Pin-tier keeps LUNs on a tier: "fast" and "capacity" move all their extents there, where fast has room; with "none" each extent is
where its use puts it. Hosts go on using the LUNs meanwhile.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				var errs []error
				for _, uuid := range args[1:] {
					if _, err := c.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: uuid, PinnedTier: args[0]}); err != nil {
						errs = append(errs, fmt.Errorf("LUN %s: %w", uuid, err))
						continue
					}
					fmt.Fprintf(cmd.OutOrStdout(), "LUN %s: pinned to tier %s\n", uuid, args[0])
				}
				return errors.Join(errs...)
			})
		}}
}
