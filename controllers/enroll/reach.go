package enroll

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/logicalunit"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// handleReach returns how a worker reaches a volume, and accepts its report that it has replayed
// the log of the volume's filesystem. A report is only for the worker itself: for the iSCSI name of
// the Host of its token.
func (s *Server) handleReach(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), answerTime)
	defer cancel()
	var body enroll.ReachRequest
	a, node, err := s.reach(ctx, req, &body)
	status, outcome := http.StatusOK, "reach"
	var r *refusal
	switch {
	case errors.As(err, &r):
		status, outcome, a = r.status, r.outcome, enroll.Reach{Error: r.text}
		if outcome != "throttled" {
			s.Log.Info("refused a request for the paths of a volume", "node", node, "volume", body.Volume, "from", req.RemoteAddr, "why", r.text)
		}
	case err != nil:
		status, outcome, a = http.StatusServiceUnavailable, "error", enroll.Reach{Error: unknown}
		s.Log.Error(err, "cannot return the paths of a volume", "node", node, "volume", body.Volume)
	}
	respond(w, status, outcome, a)
}

func (s *Server) reach(ctx context.Context, req *http.Request, body *enroll.ReachRequest) (a enroll.Reach, node string, err error) {
	node, done, err := s.authenticate(ctx, req, body, `{"volume": NAME, "replayed": GENERATION}`, func() bool {
		return body.Volume != "" && len(body.Volume) <= 253 && body.Replayed >= 0
	})
	if err != nil {
		return a, "", err
	}
	defer done()
	h := &v1alpha1.Host{}
	if err := s.Keeper.Client.Get(ctx, client.ObjectKey{Name: node}, h); apierrors.IsNotFound(err) {
		return a, node, refuse(http.StatusServiceUnavailable, "unavailable", "Host %s does not exist yet: the node plugin creates it when it starts", node)
	} else if err != nil {
		return a, node, err
	}
	lu, m, err := logicalunit.Reach(ctx, s.Keeper.Client, body.Volume, h.Spec.IQN, body.Replayed)
	switch {
	case errors.Is(err, logicalunit.ErrNotYet):
		return a, node, refuse(http.StatusServiceUnavailable, "unavailable", "%v", err)
	case errors.Is(err, logicalunit.ErrNotPublished):
		return a, node, refuse(http.StatusNotFound, "refused", "%v", err)
	case err != nil:
		return a, node, err
	}
	return enroll.Reach{TargetIQN: m.TargetIQN, Portals: m.Portals, LUN: m.LUN, WWID: lu.Status.WWID, Generation: m.Generation, ReadOnly: m.ReadOnly,
		Pair: lu.Spec.Placement.Pair, CHAP: m.CHAPUser != ""}, node, nil
}
