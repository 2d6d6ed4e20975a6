package kubectlgemel

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// printOwnership prints the drain that stands, what is not at home and why, and the last move.
func printOwnership(w io.Writer, indent string, o *v1alpha1.OwnershipStatus) {
	if o == nil {
		return
	}
	if o.Mode != "" && o.Mode != v1alpha1.BalancingAuto {
		fmt.Fprintf(w, "%sbalancing is %s: no LUN moves by itself, except for pins and drains\n", indent, o.Mode)
	}
	if o.DrainedNode != "" {
		fmt.Fprintf(w, "%snode %s is drained: %s\n", indent, o.DrainedNode, o.DrainReason)
	}
	if o.Away > 0 {
		fmt.Fprintf(w, "%s%d LUNs are not at home: %s\n", indent, o.Away, o.WaitsFor)
	}
	if o.Held > 0 && o.HeldUntil != nil {
		fmt.Fprintf(w, "%s%d LUNs are held by a person's transfer, the last until %s\n", indent, o.Held, o.HeldUntil.UTC().Format(time.RFC3339))
	}
	if n := len(o.Moves); n > 0 {
		m, verb := o.Moves[n-1], "last move"
		if m.Observed {
			verb = "would move"
		}
		fmt.Fprintf(w, "%s%s: %s from node %s to node %s %s, %s: %s\n", indent, verb, cmp.Or(m.LogicalUnit, m.UUID), m.From, m.To, m.Time.UTC().Format(time.RFC3339), m.Reason, m.Message)
	}
}

// moveText is a move of a LUN.
func moveText(m v1alpha1.LogicalUnitMove) string {
	text := fmt.Sprintf("from node %s to node %s %s, %s", m.From, m.To, m.Time.UTC().Format(time.RFC3339), m.Reason)
	if m.Message != "" {
		text += ": " + m.Message
	}
	if m.Derived {
		text += " (derived by the operator)"
	}
	return text
}

// sessionText is what a node knows of a worker.
func sessionText(n v1alpha1.HostSession) string {
	if n.Error != "" {
		return fmt.Sprintf("node %s does not answer the operator: %s", n.Node, n.Error)
	}
	asked := "never"
	if n.LastRTPG != nil {
		asked = "about " + n.LastRTPG.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("node %s: %d; it owns %d LUNs of the worker and is the home of %d; target port groups last requested: %s", n.Node, n.Sessions, n.Owned, n.Home, asked)
}
