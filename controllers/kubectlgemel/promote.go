package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// Promotion makes a node the only member of its pair although the record names another node or none
// (docs/pair.md R2, force).
type Promotion struct {
	Client    client.Client
	Namespace string // of the operator
	Control   Control
	Out       io.Writer

	AcceptLoss   bool // writes that only the other node has are lost
	OtherStopped bool // the administrator confirms that the other node is stopped
}

// ErrPromote: the promotion was rejected; the text says what to do.
var ErrPromote = errors.New("not promoted")

// Run promotes a node. It fails while the other node serves, or if it is unknown whether it does.
func (m *Promotion) Run(ctx context.Context, name, node string) error {
	if node != "a" && node != "b" {
		return fmt.Errorf("%w: NODE is %q: it must be a or b", ErrPromote, node)
	}
	p := &v1alpha1.TargetPair{}
	if err := m.Client.Get(ctx, client.ObjectKey{Name: name}, p); err != nil {
		return fmt.Errorf("%w: get TargetPair %s: %w", ErrPromote, name, err)
	}
	c, done, err := m.Control(ctx, p, node)
	if err != nil {
		return fmt.Errorf("%w: node %s cannot be reached: %w", ErrPromote, node, err)
	}
	defer done()
	s, err := c.GetStatus(ctx, &targetv1.GetStatusRequest{})
	if err != nil {
		return fmt.Errorf("%w: node %s cannot be reached: %w", ErrPromote, node, err)
	}
	m.printStatus(node, s)
	if pairclient.Serves(s.Phase) {
		return fmt.Errorf("%w: node %s already serves", ErrPromote, node)
	}
	if err := m.checkOther(ctx, p, node, s); err != nil {
		return err
	}
	if err := m.ensureRecord(ctx, p); err != nil {
		return err
	}
	if s, err = c.GetStatus(ctx, &targetv1.GetStatusRequest{}); err != nil {
		return fmt.Errorf("%w: node %s: %w", ErrPromote, node, err)
	}
	if s.ForceEpoch == 0 {
		return fmt.Errorf("%w: node %s would reject it: %s", ErrPromote, node, s.Reason)
	}
	if !m.AcceptLoss {
		return fmt.Errorf("%w: writes that only the other node has would be lost, and every LUN answers MEDIUM ERROR until its volume "+
			"has been detached and attached again: delete its pods, and start new pods only after kubectl get volumeattachments no longer lists the volume. To accept this, repeat the command with --accept-loss", ErrPromote)
	}
	if _, err := c.Force(ctx, &targetv1.ForceRequest{Epoch: s.ForceEpoch, AcceptDataLoss: true}); err != nil {
		return fmt.Errorf("%w: %w", ErrPromote, err)
	}
	fmt.Fprintf(m.Out, "node %s of %s takes over; follow it with: kubectl gemel status\n", node, name)
	return m.restart(ctx, name, pair.Other(node))
}

// restart restarts the other node: a process that has fenced itself does not read the record again,
// and so would not join.
func (m *Promotion) restart(ctx context.Context, name, node string) error {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: pair.PodName(name, node)}}
	switch err := m.Client.Delete(ctx, o); {
	case apierrors.IsNotFound(err):
		fmt.Fprintf(m.Out, "all data is copied to node %s when it is back\n", node)
	case err != nil:
		return fmt.Errorf("node %s must be restarted to join: delete the pod %s/%s: %w", node, m.Namespace, o.Name, err)
	default:
		fmt.Fprintf(m.Out, "node %s is restarted, and all data is copied to it\n", node)
	}
	return nil
}

func (m *Promotion) printStatus(node string, s *targetv1.Status) {
	fmt.Fprintf(m.Out, "node %s: %s, epoch %d, members on record %v", node, strings.TrimPrefix(s.Phase.String(), "PHASE_"), s.Epoch, s.Members)
	if s.Reason != "" {
		fmt.Fprintf(m.Out, ": %s", s.Reason)
	}
	fmt.Fprintln(m.Out)
}

// checkOther makes sure that the other node will not serve. A node that answers and does not serve
// reads in the record that it is no member; a node that does not answer may be disconnected and
// serving.
func (m *Promotion) checkOther(ctx context.Context, p *v1alpha1.TargetPair, node string, mine *targetv1.Status) error {
	other := pair.Other(node)
	s, err := m.statusOf(ctx, p, other)
	if err != nil {
		if m.OtherStopped {
			fmt.Fprintf(m.Out, "node %s: does not answer (%v); you confirmed that it is stopped\n", other, err)
			return nil
		}
		return fmt.Errorf("%w: node %s does not answer (%w). If it is only disconnected, it may still serve, and the data of the two nodes would diverge: make sure that "+
			"its process or its worker is stopped, then repeat the command with --other-stopped", ErrPromote, other, err)
	}
	m.printStatus(other, s)
	if pairclient.Serves(s.Phase) {
		return fmt.Errorf("%w: node %s serves: there is nothing to promote", ErrPromote, other)
	}
	if s.Epoch > mine.Epoch {
		return fmt.Errorf("%w: node %s has seen epoch %d, node %s only %d: promote %s instead", ErrPromote, other, s.Epoch, node, mine.Epoch, other)
	}
	return nil
}

func (m *Promotion) statusOf(ctx context.Context, p *v1alpha1.TargetPair, node string) (*targetv1.Status, error) {
	c, done, err := m.Control(ctx, p, node)
	if err != nil {
		return nil, err
	}
	defer done()
	return c.GetStatus(ctx, &targetv1.GetStatusRequest{})
}

// ensureRecord creates an empty Lease if there is none; the promoted node writes it.
func (m *Promotion) ensureRecord(ctx context.Context, p *v1alpha1.TargetPair) error {
	l := pair.NewLease(p, m.Namespace)
	err := m.Client.Get(ctx, client.ObjectKeyFromObject(l), &coordinationv1.Lease{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if !m.AcceptLoss {
		return fmt.Errorf("%w: the pair's record, Lease %s/%s, does not exist: restore it if you can; otherwise repeat the command with --accept-loss, which creates an empty one", ErrPromote, l.Namespace, l.Name)
	}
	fmt.Fprintf(m.Out, "the record, Lease %s/%s, does not exist: creating an empty one\n", l.Namespace, l.Name)
	return client.IgnoreAlreadyExists(m.Client.Create(ctx, l))
}
