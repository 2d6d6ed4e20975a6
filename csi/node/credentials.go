package node

import (
	"context"
	"errors"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/credentials"
)

// attach attaches, with the credentials that came with the call or, where the operator makes them, those of this worker on the pair. It is
// called only for what is not attached: what runs needs nobody.
func (n *unlocked) attach(ctx context.Context, a attach.Attachment) (device string, err error) {
	own := a.Auth == nil && a.Pair != "" && n.cfg.Credentials != nil
	switch {
	case a.Auth == nil && a.Enroll && n.cfg.Credentials == nil:
		return "", failedPrecondition("the targets of pair %s want CHAP credentials, and this node plugin does not know where to ask for them: start it with --enroll-endpoint", a.Pair)
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
	// What was known, or what the publish context says, is not so any more.
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
