package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// failBackDelay of the nodes under test: short, so that LUNs return in the middle of a run, too.
const failBackDelay = "3s"

// homeTime is how long the LUNs may take to return once nothing is wrong any more: hosts notice a
// path that works again within a few seconds, and a LUN that has moved often rests for long. One
// that may not move again within the hour stays where it is.
const homeTime = 90 * time.Second

var errAway = errors.New("LUNs have not returned home although nothing is wrong any more")

// home ends every drain and waits until the LUNs are where they belong. The load has ended, and
// hosts that log in at one node only, which keep a LUN at that node, hang up; those with both paths
// are logged in. Ownership that goes away and never comes back leaves half of a pair idle, and
// breaks no promise that the judges of data look at.
func (x *runner) home(ctx context.Context) error {
	r := x.rig
	r.hangUp()
	for _, n := range harness.Names {
		if err := r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
			_, err := c.Drain(ctx, &targetv1.DrainRequest{Node: n})
			return err
		}); err != nil {
			return fmt.Errorf("end of a drain: %w", err)
		}
	}
	deadline := time.Now().Add(homeTime)
	for {
		away := ""
		for _, id := range r.luns {
			err := r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				l, err := c.GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: id})
				if err == nil && l.Owner != l.PreferredNode {
					away = id
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		why := ""
		for i := range harness.Names {
			s, err := r.pair.Status(ctx, i)
			if err != nil {
				return err
			}
			why += s.Ownership.GetWaitsFor()
			x.report.Moves = max(x.report.Moves, moved(s.Ownership))
		}
		switch {
		case away == "":
			return nil
		case time.Now().Before(deadline):
		case strings.Contains(why, "rests after its last move"):
			return nil // it was moved to and fro by a person
		default:
			return fmt.Errorf("%w: LUN %s; the pair says: %s", errAway, away, why)
		}
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// moved counts what the present process of a node has decided.
func moved(o *targetv1.Ownership) (n int64) {
	for _, m := range o.GetMoves() {
		n = max(n, int64(m.Number))
	}
	return n
}
