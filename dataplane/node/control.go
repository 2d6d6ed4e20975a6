package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/grpcerr"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// control is the gRPC service of one node.
type control struct {
	targetv1.UnimplementedTargetServiceServer
	n *Node
}

// serveControl serves the control API until stop is called.
func (n *Node) serveControl(l net.Listener) (stop func()) {
	var opts []grpc.ServerOption
	if n.tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(n.controlTLS())))
	}
	opts = append(opts, grpc.MaxRecvMsgSize(4<<20))
	s := grpc.NewServer(opts...)
	targetv1.RegisterTargetServiceServer(s, &control{n: n})
	n.wg.Go(func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			n.log.Error("control API ended", "err", err)
		}
	})
	return s.Stop
}

// errorCodes are the codes of the control API; the text of an error is for people.
var errorCodes = []grpcerr.Code{
	{Err: meta.ErrNotFound, Code: codes.NotFound},
	{Err: meta.ErrExists, Code: codes.AlreadyExists},
	{Err: meta.ErrInUse, Code: codes.FailedPrecondition},
	{Err: meta.ErrInvalid, Code: codes.InvalidArgument},
	{Err: meta.ErrExhausted, Code: codes.ResourceExhausted},
	{Err: meta.ErrNotReady, Code: codes.Unavailable},
	{Err: ErrUnavailable, Code: codes.Unavailable},
	{Err: pair.ErrForceState, Code: codes.FailedPrecondition},
	{Err: pair.ErrForceEpoch, Code: codes.FailedPrecondition},
	{Err: pair.ErrForceAlive, Code: codes.FailedPrecondition},
}

func grpcError(err error) error { return grpcerr.Status(err, errorCodes) }

func invalid(field, format string, args ...any) error {
	return status.Error(codes.InvalidArgument, field+": "+fmt.Sprintf(format, args...))
}

// checkUUID wants the canonical form, which file names and designators are made from.
func checkUUID(field, s string) error {
	if u, err := uuid.Parse(s); err != nil || u.String() != s {
		return invalid(field, "%q is not a uuid in canonical lower-case form", s)
	}
	return nil
}

func checkLabels(l map[string]string) error {
	if len(l) > meta.MaxLabels {
		return invalid("labels", "%d of them, at most %d", len(l), meta.MaxLabels)
	}
	for k, v := range l {
		if len(k)+len(v) > meta.MaxLabelSize {
			return invalid("labels", "%q is longer than %d bytes", k, meta.MaxLabelSize)
		}
	}
	return nil
}

func checkSize(size uint64) error {
	switch {
	case size == 0 || size%meta.SizeStep != 0:
		return invalid("size_bytes", "%d is not a positive multiple of %d", size, meta.SizeStep)
	case size > meta.MaxSize:
		return invalid("size_bytes", "%d is beyond the limit of %d", size, int64(meta.MaxSize))
	}
	return nil
}

// checkNode wants a node of the pair, or nothing.
func checkNode(field, s string) error {
	if s == "" {
		return nil
	}
	if _, err := pair.ParseNode(s); err != nil {
		return invalid(field, "%v", err)
	}
	return nil
}

// member refuses calls that a node outside the pair would answer from old metadata.
func (c *control) member() error {
	v := c.n.View()
	if v.Phase == pair.Paired || v.Phase == pair.Alone {
		return nil
	}
	return status.Errorf(codes.Unavailable, "node %s is %s: %s: ask the other node", c.n.self, v.Phase, v.Reason)
}

func (c *control) CreateLUN(ctx context.Context, q *targetv1.CreateLUNRequest) (*targetv1.LUN, error) {
	if err := errors.Join(checkUUID("uuid", q.Uuid), checkSize(q.SizeBytes), checkLabels(q.Labels)); err != nil {
		return nil, firstStatus(err)
	}
	switch {
	case q.Name == "" || len(q.Name) > meta.MaxName:
		return nil, invalid("name", "%q must have 1 to %d bytes", q.Name, meta.MaxName)
	case q.SourceLunUuid != "" && q.SourceSnapshotUuid != "":
		return nil, invalid("source_lun_uuid", "only one of source_lun_uuid and source_snapshot_uuid may be set")
	}
	for _, f := range [][2]string{{"source_lun_uuid", q.SourceLunUuid}, {"source_snapshot_uuid", q.SourceSnapshotUuid}} {
		if f[1] != "" {
			if err := checkUUID(f[0], f[1]); err != nil {
				return nil, err
			}
		}
	}
	if err := checkNode("preferred_node", q.PreferredNode); err != nil {
		return nil, err
	}
	through, err := writeThrough(q.WriteCache)
	if err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	l := meta.LUN{UUID: q.Uuid, Name: q.Name, Size: int64(q.SizeBytes), Preferred: q.PreferredNode, Labels: q.Labels,
		SourceLUN: q.SourceLunUuid, SourceSnapshot: q.SourceSnapshotUuid, Volume: meta.VolumeOf(q.Volume), Created: meta.Now()}
	if err := c.sourceVolume(q); err != nil {
		return nil, err
	}
	l.SetWriteThrough(through)
	if err := c.n.createLUN(ctx, l); err != nil {
		return nil, grpcError(err)
	}
	return c.lun(q.Uuid)
}

// sourceVolume refuses a copy in the default volume of what lies in another one: in an entry, no name means that of the source.
func (c *control) sourceVolume(q *targetv1.CreateLUNRequest) error {
	if q.Volume != meta.DefaultVolume {
		return nil
	}
	c.n.metaMu.Lock()
	defer c.n.metaMu.Unlock()
	at := ""
	if l := c.n.state.LUNs[q.SourceLunUuid]; l != nil {
		at = l.Volume
	} else if s := c.n.state.Snapshots[q.SourceSnapshotUuid]; s != nil {
		at = s.Volume
	}
	if at != "" {
		return invalid("volume", "a copy shares extents with its source and lies in the same backing volume, which is %q and not %q: leave it out", at, q.Volume)
	}
	return nil
}

// firstStatus keeps the first of joined status errors.
func firstStatus(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()[0]
	}
	return err
}

func (c *control) DeleteLUN(ctx context.Context, q *targetv1.DeleteLUNRequest) (*targetv1.DeleteLUNResponse, error) {
	if err := checkUUID("uuid", q.Uuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	_, err := c.n.propose(ctx, &meta.Entry{DeleteLUN: &meta.Object{UUID: q.Uuid}})
	return &targetv1.DeleteLUNResponse{}, grpcError(err)
}

func (c *control) ExpandLUN(ctx context.Context, q *targetv1.ExpandLUNRequest) (*targetv1.LUN, error) {
	if err := errors.Join(checkUUID("uuid", q.Uuid), checkSize(q.SizeBytes)); err != nil {
		return nil, firstStatus(err)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	x := &meta.Expand{UUID: q.Uuid, Size: int64(q.SizeBytes)}
	for _, e := range []*meta.Entry{{Grow: x}, {Expand: x}} { // room on both nodes first (R14)
		if _, err := c.n.propose(ctx, e); err != nil {
			return nil, grpcError(err)
		}
	}
	return c.lun(q.Uuid)
}

func (c *control) GetLUN(_ context.Context, q *targetv1.GetLUNRequest) (*targetv1.LUN, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	if q.Uuid != "" {
		return c.lun(q.Uuid)
	}
	c.n.metaMu.Lock()
	l := c.n.state.LUNByName(q.Name)
	c.n.metaMu.Unlock()
	if l == nil {
		return nil, status.Errorf(codes.NotFound, "no LUN is named %q", q.Name)
	}
	return c.lun(l.UUID)
}

// page cuts a sorted list at a token.
func page[T any](all []*T, id func(*T) string, after string, limit uint32) (out []*T, next string) {
	if limit == 0 || limit > 1000 {
		limit = 1000
	}
	i, _ := slices.BinarySearchFunc(all, after, func(t *T, s string) int { return strings.Compare(id(t), s) })
	if i < len(all) && id(all[i]) == after && after != "" {
		i++
	}
	all = all[i:]
	if len(all) > int(limit) {
		return all[:limit], id(all[limit-1])
	}
	return all, ""
}

func (c *control) ListLUNs(_ context.Context, q *targetv1.ListLUNsRequest) (*targetv1.ListLUNsResponse, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	c.n.metaMu.Lock()
	all, next := page(c.n.state.SortedLUNs(), func(l *meta.LUN) string { return l.UUID }, q.AfterUuid, q.Limit)
	c.n.metaMu.Unlock()
	r := &targetv1.ListLUNsResponse{NextAfterUuid: next}
	for _, l := range all {
		if l.Stage == meta.Ready {
			r.Luns = append(r.Luns, c.toProto(l))
		}
	}
	return r, nil
}

func (c *control) lun(id string) (*targetv1.LUN, error) {
	c.n.metaMu.Lock()
	l := c.n.state.LUNs[id]
	c.n.metaMu.Unlock()
	if l == nil || l.Stage != meta.Ready {
		return nil, status.Errorf(codes.NotFound, "LUN %s is not there", id)
	}
	return c.toProto(l), nil
}

func (c *control) toProto(l *meta.LUN) *targetv1.LUN {
	p := &targetv1.LUN{Uuid: l.UUID, Name: l.Name, SizeBytes: uint64(l.Size), Owner: l.Owner, PreferredNode: l.Preferred,
		Wwid: scsi.WWIDString(l.UUID), Serial: scsi.Serial(l.UUID), Labels: l.Labels, SourceLunUuid: l.SourceLUN, SourceSnapshotUuid: l.SourceSnapshot,
		WriteCache: writeCacheProto(l), Volume: meta.VolumeName(l.Volume)}
	if e := c.n.entryOf(l.UUID); e != nil {
		c.n.mu.Lock()
		if o, ok := c.n.m.Owner(e.id); ok {
			p.Owner = o.String()
		}
		c.n.mu.Unlock()
		if a, err := e.file.Allocated(); err == nil {
			p.AllocatedBytes = uint64(a)
		}
	}
	for host, m := range l.Maps {
		p.Mappings = append(p.Mappings, c.mapping(l, host, m))
	}
	slices.SortFunc(p.Mappings, func(a, b *targetv1.Mapping) int { return strings.Compare(a.HostIqn, b.HostIqn) })
	return p
}

func (c *control) mapping(l *meta.LUN, host string, m meta.Map) *targetv1.Mapping {
	return &targetv1.Mapping{HostIqn: host, Lun: uint32(m.LUN), ReadOnly: proto.Bool(m.ReadOnly), TargetIqn: c.n.cfg.TargetIQN(), Portals: c.n.protoPortals(),
		Wwid: scsi.WWIDString(l.UUID), Generation: m.Generation}
}

func (n *Node) protoPortals() (out []*targetv1.Portal) {
	for _, p := range n.cfg.portals() {
		out = append(out, &targetv1.Portal{Node: pair.Node(p.Tag - 1).String(), Address: p.Address, GroupTag: uint32(p.Tag)})
	}
	return out
}

func checkCHAP(c *targetv1.CHAP) error {
	if c == nil || c.User == "" && c.Secret == "" && c.MutualUser == "" && c.MutualSecret == "" {
		return nil
	}
	length := func(field, s string) error {
		if len(s) < 12 || len(s) > 255 {
			return invalid(field, "a CHAP secret has 12 to 255 bytes")
		}
		return nil
	}
	if c.User == "" {
		return invalid("chap.user", "is needed with a secret")
	}
	if err := length("chap.secret", c.Secret); err != nil {
		return err
	}
	if c.MutualUser == "" && c.MutualSecret == "" {
		return nil
	}
	if c.MutualUser == "" {
		return invalid("chap.mutual_user", "is needed with mutual_secret")
	}
	if c.MutualSecret == c.Secret {
		return invalid("chap.mutual_secret", "must differ from secret (RFC 7143 section 12.1.3)")
	}
	return length("chap.mutual_secret", c.MutualSecret)
}

func (c *control) MapHost(ctx context.Context, q *targetv1.MapHostRequest) (*targetv1.Mapping, error) {
	if err := errors.Join(checkUUID("lun_uuid", q.LunUuid), checkCHAP(q.Chap)); err != nil {
		return nil, firstStatus(err)
	}
	host := strings.ToLower(q.HostIqn)
	if !pdu.ValidName(host) {
		return nil, invalid("host_iqn", "%q is not an iSCSI name (iqn., eui. or naa.)", q.HostIqn)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	e := &meta.MapHost{UUID: q.LunUuid, Host: host, ReadOnly: q.ReadOnly, Exclusive: q.Exclusive}
	if p := q.Chap; p != nil {
		e.CHAP = meta.CHAP{User: p.User, Secret: p.Secret, MutualUser: p.MutualUser, MutualSecret: p.MutualSecret}
	}
	out, err := c.n.propose(ctx, &meta.Entry{MapHost: e})
	if err != nil {
		return nil, grpcError(err)
	}
	return c.mapping(&meta.LUN{UUID: q.LunUuid}, host, *out.Map), nil
}

func (c *control) UnmapHost(ctx context.Context, q *targetv1.UnmapHostRequest) (*targetv1.UnmapHostResponse, error) {
	if err := checkUUID("lun_uuid", q.LunUuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	return &targetv1.UnmapHostResponse{}, grpcError(c.n.unmapHost(ctx, q.LunUuid, strings.ToLower(q.HostIqn)))
}

func (c *control) TransferOwnership(ctx context.Context, q *targetv1.TransferOwnershipRequest) (*targetv1.TransferOwnershipResponse, error) {
	to, err := pair.ParseNode(q.ToNode)
	if err != nil {
		return nil, invalid("to_node", "%v", err)
	}
	if q.All == (len(q.LunUuids) > 0) {
		return nil, invalid("lun_uuids", "either name LUNs or set all")
	}
	var moved int
	var pause time.Duration
	if q.All {
		moved, pause, err = c.n.transferAll(ctx, to)
	} else {
		moved, pause, err = c.n.transfer(ctx, q.LunUuids, to)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.TransferOwnershipResponse{Moved: uint32(moved), PauseUs: uint64(pause.Microseconds())}, nil
}

func snapshotProto(s *meta.Snapshot) *targetv1.Snapshot {
	return &targetv1.Snapshot{Uuid: s.UUID, Name: s.Name, SourceLunUuid: s.Source, SizeBytes: uint64(s.Size),
		Created: timestamppb.New(s.Created), Labels: s.Labels, Volume: meta.VolumeName(s.Volume)}
}
