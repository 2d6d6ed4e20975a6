package direct

import (
	"context"
	"errors"
	"fmt"
	"slices"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
)

// A filesystem that several hosts may have is only ever read by them (capability.Parse). So a mapping of one that may write is there to replay
// its log, and one that may not says that it was replayed. Nothing else is remembered: who comes when no host is mapped replays it again,
// which finds nothing to do.

// publishReader admits a host to such a volume.
func (b *Backend) publishReader(ctx context.Context, q *targetv1.MapHostRequest) (attach.Attachment, error) {
	l, err := call(ctx, b, "publish volume", client.GetLUN, &targetv1.GetLUNRequest{Uuid: q.LunUuid})
	if err != nil {
		return attach.Attachment{}, err
	}
	if err := replaying(l, q.HostIqn); err != nil {
		return attach.Attachment{}, err
	}
	if own := mappingOf(l, q.HostIqn); own != nil {
		q.ReadOnly = own.GetReadOnly()
	} else {
		q.ReadOnly = len(l.Mappings) > 0
	}
	q.Exclusive = !q.ReadOnly // decided by the pair: of two that come first, one is
	m, err := call(ctx, b, "publish volume", client.MapHost, q)
	if errors.Is(err, backend.ErrInUse) {
		return attach.Attachment{}, fmt.Errorf("%w: another worker came first to replay the log of the filesystem: this is tried again (%v)", backend.ErrUnavailable, err)
	}
	if err != nil {
		return attach.Attachment{}, err
	}
	if q.ReadOnly {
		if err := b.alone(ctx, q.LunUuid, q.HostIqn); err != nil {
			return attach.Attachment{}, err
		}
	}
	a := attachment(q.LunUuid, m, q.ReadOnly)
	a.Replay = !q.ReadOnly
	return a, nil
}

// alone takes a reader out again when another host may write. It is asked after the reader is in: from then on no other one is let in to
// write, since that asks for exclusive use.
func (b *Backend) alone(ctx context.Context, id, host string) error {
	l, err := call(ctx, b, "publish volume", client.GetLUN, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		return err
	}
	if busy := replaying(l, host); busy != nil {
		_, err := call(ctx, b, "publish volume", client.UnmapHost, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: host})
		return errors.Join(busy, err)
	}
	return nil
}

// replaying is an error while another host than this one may write.
func replaying(l *targetv1.LUN, host string) error {
	for _, m := range l.Mappings {
		if m.HostIqn != host && !m.GetReadOnly() {
			return fmt.Errorf("%w: volume %s: %s is replaying the log of its filesystem, and no other worker has it meanwhile: this is tried again",
				backend.ErrUnavailable, l.Uuid, m.HostIqn)
		}
	}
	return nil
}

func mappingOf(l *targetv1.LUN, host string) *targetv1.Mapping {
	if i := slices.IndexFunc(l.Mappings, func(m *targetv1.Mapping) bool { return m.HostIqn == host }); i >= 0 {
		return l.Mappings[i]
	}
	return nil
}

// Reach implements node.Publications (csi/node). Between the fence and the new mapping the host has none, and another host may come to replay the log
// itself. So a host that has no mapping, and has replayed the log under an earlier one, is let in to read as soon as nobody may write.
func (b *Backend) Reach(ctx context.Context, was attach.Attachment, replayed uint64) (attach.Attachment, error) {
	a, err := b.reach(ctx, was, replayed)
	if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrTimeout) {
		err = fmt.Errorf("%w: %w", attach.ErrFailed, err)
	}
	return a, err
}

func (b *Backend) reach(ctx context.Context, was attach.Attachment, replayed uint64) (attach.Attachment, error) {
	id, host := was.VolumeID, was.HostIQN
	l, err := call(ctx, b, "volume "+id, client.GetLUN, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		return attach.Attachment{}, err
	}
	m := mappingOf(l, host)
	switch {
	case m == nil && (replayed == 0 || !was.Replay || replayed != was.Generation):
		return attach.Attachment{}, fmt.Errorf("%w: volume %s is not published to %s any more: publish it again", attach.ErrInvalid, id, host)
	case m == nil:
		if m, err = b.admitReader(ctx, l, was); err != nil {
			return attach.Attachment{}, err
		}
	case !m.GetReadOnly() && replayed == m.Generation:
		if err := b.Unpublish(ctx, id, host); err != nil {
			return attach.Attachment{}, err
		}
		if m, err = b.admitReader(ctx, l, was); err != nil {
			return attach.Attachment{}, err
		}
	}
	a := attachment(id, m, m.GetReadOnly())
	a.Replay, a.Pair, a.Enroll, a.Auth, a.MutualAuth = !a.ReadOnly, was.Pair, was.Enroll, was.Auth, was.MutualAuth
	return a, nil
}

// admitReader maps a volume for reading to the host of was, unless another host may write.
func (b *Backend) admitReader(ctx context.Context, l *targetv1.LUN, was attach.Attachment) (*targetv1.Mapping, error) {
	id, host := was.VolumeID, was.HostIQN
	if err := replaying(l, host); err != nil {
		return nil, err
	}
	q := &targetv1.MapHostRequest{LunUuid: id, HostIqn: host, ReadOnly: true, Chap: credentials(was.Auth, was.MutualAuth)}
	m, err := call(ctx, b, "publish volume", client.MapHost, q)
	if err != nil {
		return nil, err
	}
	if err := b.alone(ctx, id, host); err != nil {
		return nil, err
	}
	m.ReadOnly = &q.ReadOnly
	return m, nil
}

// credentials of a host in the pair's words.
func credentials(auth, mutual *attach.CHAP) *targetv1.CHAP {
	if auth == nil {
		return nil
	}
	c := &targetv1.CHAP{User: auth.User, Secret: auth.Secret}
	if mutual != nil {
		c.MutualUser, c.MutualSecret = mutual.User, mutual.Secret
	}
	return c
}
