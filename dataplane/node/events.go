package node

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// event tells the watchers.
func (n *Node) event(kind, text string) {
	n.seen.events.Send(&targetv1.Event{Time: timestamppb.Now(), Kind: kind, Message: text})
}

// entryTexts are those of an entry: one, or one for each part of a batch.
func entryTexts(e *meta.Entry, out *meta.Outcome) (texts []string) {
	if len(e.Batch) == 0 || len(out.Parts) != len(e.Batch) {
		return []string{entryText(e, out)}
	}
	for i, part := range e.Batch {
		texts = append(texts, entryText(part, &out.Parts[i]))
	}
	return texts
}

// entryText says what an entry did, for the event stream.
func entryText(e *meta.Entry, out *meta.Outcome) string {
	suffix := ""
	if out.Code != "" {
		suffix = ": refused: " + out.Error
	}
	switch {
	case e.CreateLUN != nil:
		return "prepare LUN " + e.CreateLUN.LUN.UUID + suffix
	case e.CreateSnapshot != nil:
		return "prepare snapshot " + e.CreateSnapshot.Snapshot.UUID + suffix
	case e.Mark != nil:
		return "mark " + e.Mark.UUID + suffix
	case e.Commit != nil:
		return "commit " + e.Commit.UUID + suffix
	case e.Abort != nil:
		return "abort " + e.Abort.UUID + suffix
	case e.DeleteLUN != nil:
		return "delete LUN " + e.DeleteLUN.UUID + suffix
	case e.DeleteSnapshot != nil:
		return "delete snapshot " + e.DeleteSnapshot.UUID + suffix
	case e.Grow != nil:
		return fmt.Sprintf("reserve space to expand LUN %s to %d bytes%s", e.Grow.UUID, e.Grow.Size, suffix)
	case e.MarkLost != nil:
		return fmt.Sprintf("mark %d LUNs that may have lost writes%s", len(e.MarkLost.UUIDs), suffix)
	case e.Expand != nil:
		return fmt.Sprintf("expand LUN %s to %d bytes%s", e.Expand.UUID, e.Expand.Size, suffix)
	case e.Modify != nil:
		return "modify LUN " + e.Modify.UUID + suffix
	case e.MapHost != nil:
		return "map host " + e.MapHost.Host + " to LUN " + e.MapHost.UUID + suffix
	case e.UnmapHost != nil:
		return "unmap host " + e.UnmapHost.Host + " from LUN " + e.UnmapHost.UUID + suffix
	case e.SetOwner != nil:
		return "move ownership to node " + e.SetOwner.To + suffix
	case e.Drain != nil:
		if e.Drain.Until.After(e.Drain.At) {
			return fmt.Sprintf("drain node %s until %s: %s%s", e.Drain.Node, e.Drain.Until.Format(time.RFC3339), e.Drain.Reason, suffix)
		}
		return "end the drain of node " + e.Drain.Node + suffix
	case e.PR != nil:
		return "change reservations of LUN " + e.PR.UUID + suffix
	case e.Mode != nil:
		return "change mode pages of LUN " + e.Mode.UUID + suffix
	case e.Reset != nil:
		return "reset" + suffix
	case e.BeginGroup != nil && e.BeginGroup.Final:
		return "delete group snapshot " + e.BeginGroup.UUID + suffix
	case e.BeginGroup != nil:
		return fmt.Sprintf("begin attempt %d of group snapshot %s%s", e.BeginGroup.Attempt, e.BeginGroup.UUID, suffix)
	case e.CutGroup != nil:
		return fmt.Sprintf("cut group snapshot %s in attempt %d%s", e.CutGroup.UUID, e.CutGroup.Attempt, suffix)
	case e.VoidGroup != nil:
		return fmt.Sprintf("give up attempt %d of group snapshot %s%s", e.VoidGroup.Attempt, e.VoidGroup.UUID, suffix)
	}
	return "entry" + suffix
}
