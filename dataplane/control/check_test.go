package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Bad input gets the code that a client decides by, and a text that names the field.
func TestBadInputIsRefusedByField(t *testing.T) {
	f := newFake(t)
	c, ctx := f.client(), t.Context()
	id, snap := f.lun(), uuid.NewString()
	if _, err := c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: "iqn.2026-01.test:other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	other := uuid.NewString()
	create := func(change func(*targetv1.CreateLUNRequest)) func() error {
		return func() error {
			req := &targetv1.CreateLUNRequest{Uuid: other, Name: "other", SizeBytes: 1 << 20}
			change(req)
			_, err := c.CreateLUN(ctx, req)
			return err
		}
	}
	mapHost := func(change func(*targetv1.MapHostRequest)) func() error {
		return func() error {
			req := &targetv1.MapHostRequest{LunUuid: id, HostIqn: "iqn.2026-01.test:h"}
			change(req)
			_, err := c.MapHost(ctx, req)
			return err
		}
	}
	for name, x := range map[string]struct {
		call func() error
		code codes.Code
		says string
	}{
		"uuid":            {create(func(req *targetv1.CreateLUNRequest) { req.Uuid = "../x" }), codes.InvalidArgument, "uuid"},
		"uuid upper case": {create(func(req *targetv1.CreateLUNRequest) { req.Uuid = strings.ToUpper(other) }), codes.InvalidArgument, "uuid"},
		"size 0":          {create(func(req *targetv1.CreateLUNRequest) { req.SizeBytes = 0 }), codes.InvalidArgument, "size_bytes"},
		"size odd":        {create(func(req *targetv1.CreateLUNRequest) { req.SizeBytes = 1<<20 + 512 }), codes.InvalidArgument, "size_bytes"},
		"size huge":       {create(func(req *targetv1.CreateLUNRequest) { req.SizeBytes = 1 << 63 }), codes.InvalidArgument, "size_bytes"},
		"no name":         {create(func(req *targetv1.CreateLUNRequest) { req.Name = "" }), codes.InvalidArgument, "name"},
		"long name":       {create(func(req *targetv1.CreateLUNRequest) { req.Name = strings.Repeat("n", 254) }), codes.InvalidArgument, "name"},
		"two sources":     {create(func(req *targetv1.CreateLUNRequest) { req.SourceLunUuid, req.SourceSnapshotUuid = id, snap }), codes.InvalidArgument, "only one"},
		"bad source":      {create(func(req *targetv1.CreateLUNRequest) { req.SourceLunUuid = "x" }), codes.InvalidArgument, "source_lun_uuid"},
		"no such source":  {create(func(req *targetv1.CreateLUNRequest) { req.SourceSnapshotUuid = other }), codes.NotFound, other},
		"no such LUN":     {create(func(req *targetv1.CreateLUNRequest) { req.SourceLunUuid = uuid.NewString() }), codes.NotFound, "LUN"},
		"third node":      {create(func(req *targetv1.CreateLUNRequest) { req.PreferredNode = "c" }), codes.InvalidArgument, "preferred_node"},
		"group too long": {func() error {
			_, err := c.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: id, SpreadGroup: strings.Repeat("g", 318)})
			return err
		}, codes.InvalidArgument, "spread_group"},
		"group no name": {func() error {
			_, err := c.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: id, SpreadGroup: "a\x00b"})
			return err
		}, codes.InvalidArgument, "spread_group"},
		"name taken": {create(func(req *targetv1.CreateLUNRequest) { req.Name = "lun-" + id }), codes.AlreadyExists, "another uuid"},
		"uuid taken": {create(func(req *targetv1.CreateLUNRequest) { req.Uuid = id }), codes.AlreadyExists, id},
		"many labels": {create(func(req *targetv1.CreateLUNRequest) {
			req.Labels = map[string]string{}
			for i := range 65 {
				req.Labels[fmt.Sprint(i)] = "x"
			}
		}), codes.InvalidArgument, "labels"},
		"long label":      {create(func(req *targetv1.CreateLUNRequest) { req.Labels = map[string]string{"k": strings.Repeat("v", 1025)} }), codes.InvalidArgument, "labels"},
		"host name":       {mapHost(func(req *targetv1.MapHostRequest) { req.HostIqn = "worker1" }), codes.InvalidArgument, "host_iqn"},
		"map nothing":     {mapHost(func(req *targetv1.MapHostRequest) { req.LunUuid = other }), codes.NotFound, other},
		"short secret":    {mapHost(func(req *targetv1.MapHostRequest) { req.Chap = &targetv1.CHAP{User: "u", Secret: "short"} }), codes.InvalidArgument, "chap.secret"},
		"secret, no user": {mapHost(func(req *targetv1.MapHostRequest) { req.Chap = &targetv1.CHAP{Secret: "twelve bytes long"} }), codes.InvalidArgument, "chap.user"},
		"same secrets": {mapHost(func(req *targetv1.MapHostRequest) {
			req.Chap = &targetv1.CHAP{User: "u", Secret: "twelve bytes long", MutualUser: "v", MutualSecret: "twelve bytes long"}
		}), codes.InvalidArgument, "mutual_secret"},
		"delete in use":   {func() error { _, err := c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: id}); return err }, codes.FailedPrecondition, "unmap"},
		"delete nonsense": {func() error { _, err := c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: "x"}); return err }, codes.InvalidArgument, "uuid"},
		"get nothing":     {func() error { _, err := c.GetLUN(ctx, &targetv1.GetLUNRequest{Name: "nobody"}); return err }, codes.NotFound, "nobody"},
		"expand nothing": {func() error {
			_, err := c.ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: other, SizeBytes: 2 << 20})
			return err
		}, codes.NotFound, other},
		"snapshot of nothing": {func() error {
			_, err := c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: other, Name: "x", SourceLunUuid: other})
			return err
		}, codes.NotFound, other},
		"write cache": {create(func(req *targetv1.CreateLUNRequest) { req.WriteCache = 9 }), codes.InvalidArgument, "write_cache"},
		"scrub too fast": {func() error {
			_, err := c.Scrub(ctx, &targetv1.ScrubRequest{BytesPerSecond: maxScrubRate + 1})
			return err
		}, codes.InvalidArgument, "bytes_per_second"},
		"scrub of no origin": {func() error { _, err := c.Scrub(ctx, &targetv1.ScrubRequest{Origin: 9}); return err }, codes.InvalidArgument, "origin"},
		"scrub nonsense":     {func() error { _, err := c.Scrub(ctx, &targetv1.ScrubRequest{Uuids: []string{"x"}}); return err }, codes.InvalidArgument, "uuids"},
		"force, no consent":  {func() error { _, err := c.Force(ctx, &targetv1.ForceRequest{Epoch: 1}); return err }, codes.InvalidArgument, "accept_data_loss"},
		"force, no epoch":    {func() error { _, err := c.Force(ctx, &targetv1.ForceRequest{AcceptDataLoss: true}); return err }, codes.InvalidArgument, "epoch"},
		"move to nobody": {func() error {
			_, err := c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "c"})
			return err
		}, codes.InvalidArgument, "to_node"},
		"transfer that holds for too long": {func() error {
			_, err := c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "b", HoldSeconds: new(uint32(86401))})
			return err
		}, codes.InvalidArgument, "hold_seconds"},
		"pin to node c": {func() error {
			_, err := c.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: id, PinnedNode: "c"})
			return err
		}, codes.InvalidArgument, "pinned_node"},
		"new LUN that is pinned and prefers the other node": {func() error {
			_, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "n", SizeBytes: 1 << 20, PreferredNode: "a", PinnedNode: "b"})
			return err
		}, codes.InvalidArgument, "preferred_node"},
		"policy without a mode": {func() error {
			_, err := c.SetOwnershipPolicy(ctx, &targetv1.SetOwnershipPolicyRequest{FailBackDelaySeconds: 30, Version: 1})
			return err
		}, codes.InvalidArgument, "mode"},
		"policy with a short delay": {func() error {
			_, err := c.SetOwnershipPolicy(ctx, &targetv1.SetOwnershipPolicyRequest{Mode: "auto", FailBackDelaySeconds: 4, Version: 1})
			return err
		}, codes.InvalidArgument, "fail_back_delay_seconds"},
		"policy without a version": {func() error {
			_, err := c.SetOwnershipPolicy(ctx, &targetv1.SetOwnershipPolicyRequest{Mode: "auto", FailBackDelaySeconds: 30})
			return err
		}, codes.InvalidArgument, "version"},
		"drain of node c":    {func() error { _, err := c.Drain(ctx, &targetv1.DrainRequest{Node: "c", Seconds: 1}); return err }, codes.InvalidArgument, "node"},
		"drain for too long": {func() error { _, err := c.Drain(ctx, &targetv1.DrainRequest{Node: "a", Seconds: 3601}); return err }, codes.InvalidArgument, "seconds"},
		"drain with a long reason": {func() error {
			_, err := c.Drain(ctx, &targetv1.DrainRequest{Node: "a", Seconds: 1, Reason: strings.Repeat("x", 257)})
			return err
		}, codes.InvalidArgument, "reason"},
		"move nothing": {func() error {
			_, err := c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{ToNode: "b"})
			return err
		}, codes.InvalidArgument, "lun_uuids"},
	} {
		err := x.call()
		if status.Code(err) != x.code || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, x.code, x.says)
		}
	}
	if l, err := c.ListLUNs(ctx, &targetv1.ListLUNsRequest{}); err != nil || len(l.Luns) != 1 {
		t.Errorf("refused requests leave LUNs behind: %v, %v", l, err)
	}
}
