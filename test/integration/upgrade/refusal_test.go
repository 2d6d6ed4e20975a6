package upgrade

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// both are the releases that have to refuse newer formats. A format that the release before does
// not refuse must not be written by any later release.
func both() []build { return []build{before, now} }

// A state folder, or a backing volume, of a newer format ends the process at once, with an error
// that names both formats; nothing in it is touched, so that the release that wrote it can go on.
func TestNewerFormatOnDiskIsRefusedByName(t *testing.T) {
	for _, b := range both() {
		for _, file := range []string{"store.json", "volume.json"} {
			t.Run(b.version+" "+file, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				p := lay(t, [2]build{b, b})
				volume := t.TempDir()
				p.PerNode[0] = []string{"--backing-volume", "fast=" + volume, "--shared-filesystem"}
				if err := p.StartNode(0); err != nil {
					t.Fatal(err)
				}
				if err := p.WaitPhase(ctx, 0, targetv1.Phase_PHASE_STARTING); err != nil { // a new pair waits for its second node
					t.Fatal(err)
				}
				if err := p.Term(0); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(map[string]string{"store.json": p.State[0], "volume.json": volume}[file], file)
				newer := raise(t, path)
				if err := p.StartNode(0); err != nil {
					t.Fatal(err)
				}
				if err := harness.Wait(ctx, "the node has ended", func() (bool, string) {
					ended, err := p.Ended(0)
					return ended && err != nil, fmt.Sprint(ended, err)
				}); err != nil {
					t.Fatal(err)
				}
				if err := p.Kill(0); err != nil { // it is gone; the place is free for the next
					t.Fatal(err)
				}
				log, err := os.ReadFile(p.LogFile(0))
				want := "the store has a newer format: format 99, this "
				if err != nil || !strings.Contains(string(log), want) || !strings.Contains(string(log), path) {
					t.Fatalf("%v: no %q of %s in\n%s", err, want, path, log)
				}
				if left, err := os.ReadFile(path); err != nil || string(left) != newer {
					t.Fatalf("%s was changed: %v\n%s", path, err, left)
				}
			})
		}
	}
}

// A release that knows no members of backing volumes does not start on one that has some: it would
// read holes where data is.
func TestVolumeWithMembersIsRefusedByName(t *testing.T) {
	for name, flags := range map[string][]string{"store.json": nil, "volume.json": {"--backing-volume", "fast="}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p := lay(t, [2]build{now, now})
			of, without := "default", []string{"--shared-filesystem"}
			if flags != nil {
				of, without = "fast", append(without, flags[0], flags[1]+t.TempDir())
			}
			p.PerNode[0] = append([]string{"--backing-volume", of + "/m=" + t.TempDir()}, without...)
			if err := p.StartNode(0); err != nil {
				t.Fatal(err)
			}
			if err := p.WaitPhase(ctx, 0, targetv1.Phase_PHASE_STARTING); err != nil {
				t.Fatal(err)
			}
			if err := p.Term(0); err != nil {
				t.Fatal(err)
			}
			use(p, 0, before)
			p.PerNode[0] = without
			if err := p.StartNode(0); err != nil {
				t.Fatal(err)
			}
			if err := harness.Wait(ctx, "the node has ended", func() (bool, string) {
				ended, err := p.Ended(0)
				return ended && err != nil, fmt.Sprint(ended, err)
			}); err != nil {
				t.Fatal(err)
			}
			if err := p.Kill(0); err != nil { // it is gone
				t.Fatal(err)
			}
			log, err := os.ReadFile(p.LogFile(0))
			want := "the store has a newer format: format 2, this "
			if err != nil || !strings.Contains(string(log), want) || !strings.Contains(string(log), name) {
				t.Fatalf("%v: no %q of %s in\n%s", err, want, name, log)
			}
		})
	}
}

// raise gives a file a format of the future.
func raise(t *testing.T, path string) (text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	v["format"] = 99
	if b, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A peer that speaks newer versions of the link only is refused by name, by the answer and in the
// log; one that speaks this one as well is answered with what both know.
func TestNewerLinkIsRefusedByName(t *testing.T) {
	for _, b := range both() {
		t.Run(b.version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p := lay(t, [2]build{b, b})
			if err := p.StartNode(0); err != nil {
				t.Fatal(err)
			}
			h := hello(t, ctx, p, `"version":2,"min":2,"max":3,"features":["volumes","of tomorrow"]`)
			const want = "the peer speaks link version 2 to 3, this node 1: upgrade this node, by way of a release between the two"
			if text, _ := h["error"].(string); !strings.Contains(text, want) {
				t.Errorf("answered %v, not %q", h, want)
			}
			if log, err := os.ReadFile(p.LogFile(0)); err != nil || !strings.Contains(string(log), want) {
				t.Errorf("%v: no %q in\n%s", err, want, log)
			}
			features := "[volumes metadata-parts scrub-share ownership warm copies groups batch tiers]"
			if b.version == "0.1.0" {
				features = "[volumes]"
			}
			h = hello(t, ctx, p, `"version":1,"min":1,"max":3,"features":["volumes","of tomorrow"]`)
			if h["error"] != "" || h["version"] != 1.0 || h["min"] != 1.0 || h["max"] != 1.0 || fmt.Sprint(h["features"]) != features {
				t.Errorf("answered %v", h)
			}
		})
	}
}

// hello says it to node a, as node b, and gives the answer.
func hello(t *testing.T, ctx context.Context, p *harness.Pair, speaks string) map[string]any {
	t.Helper()
	var c net.Conn
	if err := harness.Wait(ctx, "node a listens", func() (bool, string) {
		var err error
		c, err = new(net.Dialer).DialContext(ctx, "tcp", p.Link())
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	raw := fmt.Sprintf(`{%s,"cluster":%q,"pair":%q,"node":"b","role":"data","link":9,"error":""}`, speaks, p.InCluster, p.Name)
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)); err != nil {
		t.Fatal(err)
	}
	var l [4]byte
	if _, err := io.ReadFull(c, l[:]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(l[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	var h map[string]any
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatal(err)
	}
	return h
}
