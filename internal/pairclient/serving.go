package pairclient

import (
	"context"
	"errors"
	"fmt"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Serves tells whether a node in this phase serves hosts and takes changes.
func Serves(p targetv1.Phase) bool {
	switch p {
	case targetv1.Phase_PHASE_IN_SYNC, targetv1.Phase_PHASE_ALONE, targetv1.Phase_PHASE_RESYNCING:
		return true
	}
	return false
}

// Serving asks both nodes at once and returns the status of one that serves. The error says of each
// node why it does not.
func (p *Client) Serving(ctx context.Context) (*targetv1.Status, error) {
	type answer struct {
		s   *targetv1.Status
		err error
	}
	answers := make(chan answer, len(p.Nodes))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the one that hangs is not waited for
	for _, n := range p.Nodes {
		go func() { // ends with the context
			s, err := n.GetStatus(ctx, &targetv1.GetStatusRequest{})
			if err == nil && !Serves(s.Phase) {
				err = fmt.Errorf("node %s is %v: %s", s.Node, s.Phase, s.Reason)
			} else if err != nil {
				err = fmt.Errorf("%s: %w", n.Address, err)
			}
			answers <- answer{s, err}
		}()
	}
	var errs []error
	for range p.Nodes {
		a := <-answers
		if a.err == nil {
			return a.s, nil
		}
		errs = append(errs, a.err)
	}
	return nil, errors.Join(errs...)
}
