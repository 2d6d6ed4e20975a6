package node

import (
	"errors"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A change that may be in the log is not answered BUSY, which says that the command was not
// accepted.
func TestOutcomeOfAProposal(t *testing.T) {
	good := meta.Outcome{SCSI: &scsi.Outcome{Status: scsi.StatusReservationConflict}}
	fine := func() error { return nil }
	for name, c := range map[string]struct {
		end  proposalEnd
		rest func() error
		want byte
	}{
		"decided":                          {proposalEnd{scsi.OK, good}, fine, scsi.StatusReservationConflict},
		"the node cannot tell":             {proposalEnd{scsi.Unavailable, meta.Outcome{}}, fine, scsi.StatusCheckCondition},
		"applied, and no word of the rest": {proposalEnd{scsi.OK, good}, func() error { return errors.New("the link is down") }, scsi.StatusCheckCondition},
		"an entry that was refused":        {proposalEnd{scsi.OK, meta.Outcome{}}, fine, scsi.StatusCheckCondition},
	} {
		got := c.end.outcome(c.rest)
		if got.Status != c.want {
			t.Errorf("%s: status %#x", name, got.Status)
		}
		if got.Status == scsi.StatusCheckCondition && (len(got.Sense) < 14 || got.Sense[2] != byte(scsi.AbortedCommand)) {
			t.Errorf("%s: sense % x", name, got.Sense)
		}
	}
}
