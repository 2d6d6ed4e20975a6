package kernel

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// One target asks for other credentials than the worker has: that path is missing until the
// attachment has been given them.
func TestRefusedAndRenewed(t *testing.T) {
	f, a, want := setup(t)
	ctx := t.Context()
	want.Auth = &attach.CHAP{User: "host", Secret: "old secret of it"}
	a1, a2 := netip.MustParseAddrPort(want.Portals[0]), netip.MustParseAddrPort(want.Portals[1])
	f.wants = map[netip.AddrPort]string{a1: "old secret of it", a2: "new secret of it"}
	if _, err := a.Attach(ctx, want); err != nil {
		t.Fatal(err)
	}
	if len(f.sessions) != 1 {
		t.Fatal(f.sessions)
	}
	refused, err := a.Refused(ctx)
	if err != nil || len(refused) != 1 || refused[0].VolumeID != "v1" {
		t.Fatal(refused, err)
	}
	before := f.sessions[0].sid
	if err := a.Renew(ctx, attach.Refusal{VolumeID: "v1"}, &attach.CHAP{User: "host", Secret: "new secret of it"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	if f.sessions[0].sid != before {
		t.Error("the session that was up did not go on")
	}
	if refused, err := a.Refused(ctx); err != nil || len(refused) != 0 {
		t.Fatal(refused, err)
	}
	if err := a.Renew(ctx, attach.Refusal{VolumeID: "none"}, nil, nil); !errors.Is(err, attach.ErrNotAttached) {
		t.Error(err)
	}
}

// Where no target takes them, the error says that the credentials are the cause.
func TestRefusedEverywhere(t *testing.T) {
	f, a, want := setup(t)
	f.wants = map[netip.AddrPort]string{}
	for _, p := range want.Portals {
		f.wants[netip.MustParseAddrPort(p)] = "something else"
	}
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrCredentials) {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Error(err)
	}
}
