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
		if _, err := n.setCredentials(&a, func(pair string, _ credentials.Set) (credentials.Set, error) {
			return n.cfg.Credentials.Get(ctx, pair)
		}); err != nil {
			return "", err
		}
	}
	device, err = n.cfg.Attacher.Attach(ctx, a)
	if !own || !errors.Is(err, attach.ErrCredentials) {
		return device, err
	}
	// The cached credentials or the publish context are outdated.
	other, oerr := n.setCredentials(&a, func(pair string, was credentials.Set) (credentials.Set, error) {
		return n.cfg.Credentials.Other(ctx, pair, was)
	})
	if oerr != nil {
		return "", errors.Join(oerr, err)
	}
	if !other {
		return "", err
	}
	return n.cfg.Attacher.Attach(ctx, a)
}

// setCredentials sets those of each target of an attachment, by its pair, to what get returns for
// those it has. other reports whether any are different now.
func (n *unlocked) setCredentials(a *attach.Attachment, get func(pair string, was credentials.Set) (credentials.Set, error)) (other bool, err error) {
	for i, t := range a.Targets() {
		was := credentials.Set{Auth: t.Auth, Mutual: t.MutualAuth}
		set, err := get(t.Pair, was)
		if err != nil {
			return false, err
		}
		other = other || !set.Same(was)
		a.SetCredentials(i, set.Auth, set.Mutual)
	}
	return other, nil
}
