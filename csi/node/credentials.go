package node

import (
	"context"
	"errors"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/credentials"
)

// attach attaches a volume, with the credentials of the call or, if the operator creates them,
// those of this worker on the pair. It is called only for volumes that are not attached: attached
// ones do not need the operator.
func (n *unlocked) attach(ctx context.Context, a attach.Attachment) (device string, err error) {
	own := a.Auth == nil && a.Pair != "" && n.cfg.Credentials != nil
	switch {
	case a.Auth == nil && a.Enroll && n.cfg.Credentials == nil:
		return "", failedPrecondition("the targets of pair %s require CHAP credentials: start the node plugin with --enroll-endpoint, so that it can request them", a.Pair)
	case own && a.Enroll:
		set, err := n.cfg.Credentials.Get(ctx, a.Pair)
		if err != nil {
			return "", err
		}
		a.Auth, a.MutualAuth = set.Auth, set.Mutual
	}
	device, err = n.cfg.Attacher.Attach(ctx, a)
	if !own || !errors.Is(err, attach.ErrCredentials) {
		return device, err
	}
	// The cached credentials or the publish context are outdated.
	was := credentials.Set{Auth: a.Auth, Mutual: a.MutualAuth}
	set, oerr := n.cfg.Credentials.Other(ctx, a.Pair, was)
	if oerr != nil {
		return "", errors.Join(oerr, err)
	}
	if set.Same(was) {
		return "", err
	}
	a.Auth, a.MutualAuth = set.Auth, set.Mutual
	return n.cfg.Attacher.Attach(ctx, a)
}
