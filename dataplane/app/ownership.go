package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// movesShown are the last moves in the text of a status; all that are kept are in its JSON.
const movesShown = 5

// printOwnership says what is not at home and why, and what has moved lately.
func printOwnership(line func(name, format string, args ...any), o *targetv1.Ownership) {
	if m := o.GetMode(); m != "" && (m != "auto" || o.PolicyVersion > 0) {
		from := fmt.Sprintf("version %d", o.PolicyVersion)
		if o.PolicyVersion == 0 {
			from = "by the flags of this node"
		}
		line("balancing", "%s, LUNs return after %v, %s", m, o.FailBackDelay.AsDuration(), from)
	}
	if o.GetDrainedNode() != "" {
		line("drain", "node %s until %s: %s", o.DrainedNode, o.DrainedUntil.AsTime().Format(time.RFC3339), o.DrainReason)
	}
	if o.GetAway() > 0 {
		line("not at home", "%d LUNs: %s", o.Away, o.WaitsFor)
	}
	if o.GetHeld() > 0 {
		line("held", "%d LUNs by a person's transfer, the last until %s", o.Held, o.HeldUntil.AsTime().Format(time.RFC3339))
	}
	moves := o.GetMoves()
	for _, m := range moves[max(0, len(moves)-movesShown):] {
		verb := "moved"
		if m.Observed {
			verb = "would move"
		}
		line(verb, "%s LUN %s from %s to %s, %s: %s", m.Time.AsTime().Format(time.RFC3339), m.Lun, m.FromNode, m.ToNode, m.Reason, m.Text)
	}
}

func (a *admin) transfer() *cobra.Command {
	req := &targetv1.TransferOwnershipRequest{}
	var hold time.Duration
	cmd := &cobra.Command{Use: "transfer [UUID...]", Short: "Move LUNs to a node, which is their home from then on",
		Long: `Transfer moves LUNs to a node and makes it their home. For as long as --hold says, they go away from it only if it fails or is
drained, if their hosts can use only the other node, or if they are pinned to the other node.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.LunUuids = args; req.All == (len(args) > 0) {
				return errors.New("give the uuids of LUNs, or --all")
			}
			var err error
			if req.HoldSeconds, err = targetv1.HoldSeconds(hold); err != nil {
				return fmt.Errorf("--hold: %w", err)
			}
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				r, err := c.TransferOwnership(ctx, req)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "moved %d LUNs; commands waited for %v; %s\n", r.Moved, time.Duration(r.PauseUs)*time.Microsecond, r.Holds())
				return err
			})
		}}
	cmd.Flags().StringVar(&req.ToNode, "to", "", `node to move LUNs to: "a" or "b"`)
	cmd.Flags().DurationVar(&hold, "hold", 30*time.Minute, "how long the pair leaves the LUNs there, from 0s to 24h")
	cmd.Flags().BoolVar(&req.All, "all", false, "move every LUN of the pair")
	return cmd
}

func (a *admin) drainMember() *cobra.Command {
	req := &targetv1.DrainMemberRequest{}
	cmd := &cobra.Command{Use: "drain-member VOLUME MEMBER", Short: "Move all data away from a member of a backing volume of this node, before the member is taken away", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Volume, req.Member = args[0], args[1]
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				if _, err := c.DrainMember(ctx, req); err != nil {
					return err
				}
				text := fmt.Sprintf("member %s of backing volume %s is drained: \"gemel-target status\" says when it is empty\n", req.Member, req.Volume)
				if req.End {
					text = fmt.Sprintf("member %s of backing volume %s is not drained any more\n", req.Member, req.Volume)
				}
				_, err := fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			})
		}}
	cmd.Flags().BoolVar(&req.End, "end", false, "end the drain: what has moved stays where it is")
	return cmd
}

func (a *admin) drain() *cobra.Command {
	req := &targetv1.DrainRequest{}
	var d time.Duration
	end := false
	cmd := &cobra.Command{Use: "drain a|b", Short: "Move every LUN away from a node, and let none return for a while", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Node = args[0]; end {
				d = 0
			} else if d < time.Second {
				return errors.New("--for: give at least 1s, or --end to end the drain")
			}
			req.Seconds = uint32(d / time.Second)
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				r, err := c.Drain(ctx, req)
				if err != nil {
					return err
				}
				text := fmt.Sprintf("moved %d LUNs; commands waited for %v; no LUN moves to node %s for %v\n", r.Moved, time.Duration(r.PauseUs)*time.Microsecond, req.Node, d)
				if end {
					text = fmt.Sprintf("node %s is not drained any more; LUNs return to it when their hosts can use it\n", req.Node)
				}
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			})
		}}
	cmd.Flags().DurationVar(&d, "for", 10*time.Minute, "how long the node stays drained, at most 1h; another drain begins the time again")
	cmd.Flags().BoolVar(&end, "end", false, "end the drain")
	cmd.Flags().StringVar(&req.Reason, "reason", "an administrator drains the node", "shown in the status of the pair")
	return cmd
}
