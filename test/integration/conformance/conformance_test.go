// Package conformance runs libiscsi's test suite in full against a LUN of a real pair, one URL per
// node.
package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// The two initiators that iscsi-test-cu logs in as.
var hosts = []string{
	"iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test",
	"iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test-2",
}

const secret = "conformance-12"

func TestConformanceOfEachNode(t *testing.T) {
	if _, err := exec.LookPath("iscsi-test-cu"); err != nil {
		t.Skip("skipped: iscsi-test-cu is not installed (Debian: libiscsi-bin); `make deps` installs it")
	}
	dir := t.TempDir()
	target, err := harness.Build(t.Context(), dir, "./cmd/gemel-target")
	if err != nil {
		t.Fatal(err)
	}
	runner, err := harness.Build(t.Context(), dir, "./hack/conformance")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		name  string
		args  []string
		first int // node whose URL comes first; node a owns the LUN
		chap  bool
	}{
		{name: "owner-first", first: 0},
		{name: "other-first", first: 1},
		// libiscsi knows header digests only; data digests are tested with our own initiator.
		{name: "digests", first: 1, args: []string{"--header-digest=require"}},
		{name: "chap-other-first", first: 1, chap: true},
	} {
		t.Run(v.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			p, err := harness.New(harness.Options{Dir: t.TempDir(), Binary: target, Args: v.args})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				if t.Failed() {
					for i := range harness.Names {
						b, _ := os.ReadFile(p.LogFile(i))
						t.Logf("log of node %s:\n%s", harness.Names[i], b)
					}
				}
			}()
			if err := p.Start(ctx); err != nil {
				t.Fatal(err)
			}
			id := uuid.NewString()
			c := p.Client(0)
			if _, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "conformance", SizeBytes: 1 << 30, PreferredNode: "a"}); err != nil {
				t.Fatal(err)
			}
			login := ""
			var number uint32
			for _, h := range hosts {
				req := &targetv1.MapHostRequest{LunUuid: id, HostIqn: h}
				if v.chap {
					req.Chap = &targetv1.CHAP{User: "host", Secret: secret}
					login = "host%" + secret + "@"
				}
				m, err := c.MapHost(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				number = m.Lun
			}
			url := func(i int) string { return fmt.Sprintf("iscsi://%s%s/%s/%d", login, p.ISCSI[i], p.IQN(), number) }
			cmd := exec.CommandContext(ctx, runner, "-variant", v.name, "-reviewed", harness.Root()+"/hack/conformance/reviewed.txt",
				url(v.first), url(1-v.first))
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Errorf("conformance: %v", err)
			}
			for i := range harness.Names { // neither node has lost its place
				if s, err := p.Status(ctx, i); err != nil || s.Phase != targetv1.Phase_PHASE_IN_SYNC || s.Epoch != 1 {
					t.Errorf("node %s afterwards: %v %v", harness.Names[i], s, err)
				}
			}
		})
	}
}
