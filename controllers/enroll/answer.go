package enroll

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// refusal is a negative answer. Its text is sent to the worker.
type refusal struct {
	status  int
	outcome string // label of the metric
	text    string
	event   bool // an administrator must act: record an event of the Host
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, outcome, format string, args ...any) *refusal {
	return &refusal{status: status, outcome: outcome, text: fmt.Sprintf(format, args...)}
}

// answer returns the credentials of a worker on a pair. It reads from the cache: the targets reject
// outdated credentials, and the worker requests them again.
func (s *Server) answer(ctx context.Context, node, pair string) (enroll.Answer, error) {
	none := enroll.Answer{}
	h := &v1alpha1.Host{}
	if err := s.Keeper.Client.Get(ctx, client.ObjectKey{Name: node}, h); apierrors.IsNotFound(err) {
		return none, refuse(http.StatusServiceUnavailable, "unavailable", "Host %s does not exist yet: the node plugin creates it when it starts", node)
	} else if err != nil {
		return none, err
	}
	if err := s.Keeper.Client.Get(ctx, client.ObjectKey{Name: pair}, &v1alpha1.TargetPair{}); apierrors.IsNotFound(err) {
		return none, refuse(http.StatusNotFound, "refused", "TargetPair %s does not exist", pair)
	} else if err != nil {
		return none, err
	}
	// Only a worker with a LUN there needs credentials.
	with, without, err := s.Keeper.Mapped(ctx, pair, h.Spec.IQN)
	switch {
	case err != nil:
		return none, err
	case !with && !without:
		return none, refuse(http.StatusServiceUnavailable, "unavailable", "no LUN of pair %s is mapped to host %s (%s) yet", pair, node, h.Spec.IQN)
	case !with:
		return none, nil
	}
	c, err := s.Keeper.Get(ctx, pair, h.Spec.IQN)
	switch {
	case errors.Is(err, chap.ErrDamaged):
		return none, refuse(http.StatusServiceUnavailable, "unavailable", "%v", err)
	case err != nil:
		return none, err
	case c == nil:
		return none, refuse(http.StatusServiceUnavailable, "unavailable", "the credentials of host %s on pair %s are being created", node, pair)
	case c.Host == h.Name:
		return enroll.Answer{User: c.User, Secret: c.Secret, MutualUser: c.MutualUser, MutualSecret: c.MutualSecret}, nil
	}
	// Another worker with the same iSCSI name has LUNs: it keeps its credentials.
	r := refuse(http.StatusConflict, "refused", "the iSCSI name %s of host %s has LUNs of pair %s as host %s: give each worker that was created from the same image its own machine-id and an empty state folder of the node plugin",
		h.Spec.IQN, node, pair, c.Host)
	r.event = true
	return none, r
}

// recordEvent records an event of a refusal that needs an administrator.
func (s *Server) recordEvent(ctx context.Context, node string, r *refusal) {
	h := &v1alpha1.Host{}
	if r.event && s.Events != nil && s.Keeper.Client.Get(ctx, client.ObjectKey{Name: node}, h) == nil {
		s.Events.Eventf(h, nil, corev1.EventTypeWarning, v1alpha1.ReasonNotEnrolled, "Enroll", "%s", r.text)
	}
}
