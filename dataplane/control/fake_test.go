package control

import (
	"cmp"
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// fake is a Node of metadata alone: entries are applied at once, and nothing is stored.
type fake struct {
	t        *testing.T
	state    *meta.State
	phase    pair.Phase
	sessions []iscsi.SessionInfo
	work     map[string]count.Totals // by uuid
	err      error                   // of what it cannot do alone
	events   Events
	done     chan struct{}
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, state: meta.NewState(), phase: pair.Paired, done: make(chan struct{})}
}

// client calls the service over gRPC.
func (f *fake) client() targetv1.TargetServiceClient {
	f.t.Helper()
	l := bufconn.Listen(1 << 20)
	s := NewServer(Config{Self: pair.B, TargetIQN: "iqn.2026-11.test:p0", Portals: []iscsi.Portal{{Address: "10.0.0.1:3260", Tag: 1}, {Address: "10.0.0.2:3260", Tag: 2}},
		Events: &f.events, Done: f.done}, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	c, err := grpc.NewClient("passthrough:fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = c.Close()
		s.Stop()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	return targetv1.NewTargetServiceClient(c)
}

// lun makes a LUN of 1 MiB.
func (f *fake) lun() string {
	f.t.Helper()
	id := uuid.NewString()
	if err := f.CreateLUN(f.t.Context(), meta.LUN{UUID: id, Name: "lun-" + id, Size: 1 << 20, Created: meta.Now()}); err != nil {
		f.t.Fatal(err)
	}
	return id
}

func (f *fake) View() pair.View                               { return pair.View{Phase: f.phase, Reason: "of the test"} }
func (f *fake) Status(context.Context) *targetv1.Status       { return &targetv1.Status{Node: "b"} }
func (f *fake) Sessions() []iscsi.SessionInfo                 { return slices.Clone(f.sessions) }
func (f *fake) ReadMetadata(read func(*meta.State))           { read(f.state) }
func (f *fake) Usage(string) (owner string, allocated uint64) { return "b", 4096 }
func (f *fake) Process() (uint64, time.Duration)              { return 42, 3 * time.Second }
func (f *fake) Work(uuid string) (string, count.Totals)       { return "b", f.work[uuid] }
func (f *fake) Force(uint64) error                            { return f.err }
func (f *fake) ModifyLUN(ctx context.Context, m meta.Modify) error {
	_, err := f.Change(ctx, &meta.Entry{Modify: &m})
	return err
}

func (f *fake) Change(_ context.Context, e *meta.Entry) (meta.Outcome, error) {
	out, _ := f.state.Apply(f.state.Index+1, e)
	return out, out.Err()
}

// twoStep prepares and commits.
func (f *fake) twoStep(ctx context.Context, prepare *meta.Entry, id string) error {
	out, err := f.Change(ctx, prepare)
	if err == nil && !out.Noop {
		_, err = f.Change(ctx, &meta.Entry{Commit: &meta.Object{UUID: id}})
	}
	return err
}

func (f *fake) CreateLUN(ctx context.Context, l meta.LUN) error {
	return f.twoStep(ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l}}, l.UUID)
}

func (f *fake) CreateSnapshot(ctx context.Context, s meta.Snapshot) error {
	return f.twoStep(ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: s}}, s.UUID)
}

func (f *fake) UnmapHost(ctx context.Context, lun, host string) error {
	_, err := f.Change(ctx, &meta.Entry{UnmapHost: &meta.UnmapHost{UUID: lun, Host: host}})
	return err
}

func (f *fake) Transfer(_ context.Context, uuids []string, _ pair.Node, hold time.Duration) (Transferred, error) {
	t := Transferred{Moved: len(uuids), Pause: time.Millisecond}
	if hold > 0 {
		t.HeldUntil = time.Unix(0, 0).Add(hold)
	}
	return t, f.err
}

func (f *fake) GetTiering(string) (*targetv1.GetTieringResponse, error) {
	return &targetv1.GetTieringResponse{Mode: "auto"}, nil
}
func (f *fake) DrainMember(context.Context, string, string, bool) error { return nil }

func (f *fake) Drain(context.Context, pair.Node, time.Duration, string) (int, time.Duration, error) {
	return 3, time.Millisecond, f.err
}

func (f *fake) SetPolicy(ctx context.Context, p meta.Policy) error {
	_, err := f.Change(ctx, &meta.Entry{Policy: &p})
	return err
}

func (f *fake) TransferAll(_ context.Context, _ pair.Node, _ time.Duration) (Transferred, error) {
	return Transferred{Moved: len(f.state.LUNs), Pause: time.Millisecond}, f.err
}

func (f *fake) Scrub(context.Context, *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error) {
	return &targetv1.ScrubResponse{}, f.err
}

func (f *fake) BeginGroup(ctx context.Context, e meta.BeginGroup, discard bool) error {
	_, err := f.Change(ctx, &meta.Entry{BeginGroup: &e})
	if discard || e.Final {
		for _, s := range f.state.Members(e.UUID) {
			_, aerr := f.Change(ctx, &meta.Entry{DeleteSnapshot: &meta.Object{UUID: s.UUID}})
			err = cmp.Or(err, aerr)
		}
	}
	return err
}

func (f *fake) PrepareGroup(ctx context.Context, members []meta.Snapshot) error {
	for _, s := range members {
		if _, err := f.Change(ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: s, Later: true}}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) HoldGroup(context.Context, string, uint64, time.Duration) (uint64, error) {
	return 12, f.err
}

func (f *fake) CutGroup(ctx context.Context, group string, attempt, hold uint64) (time.Duration, error) {
	if hold != 12 {
		return 0, meta.ErrAborted
	}
	seqs := map[string]uint64{}
	for _, s := range f.state.Members(group) {
		seqs[s.Source] = f.state.LUNs[s.Source].Seq
	}
	_, err := f.Change(ctx, &meta.Entry{CutGroup: &meta.CutGroup{UUID: group, Attempt: attempt, Seqs: seqs}})
	return 7 * time.Millisecond, err
}
