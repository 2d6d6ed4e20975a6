package link

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

func TestNegotiateVersionAndFeatures(t *testing.T) {
	many := make([]string, maxFeatures+1)
	for _, c := range []struct {
		name     string
		own      Versions
		features []string
		peer     Hello
		want     Negotiated
		refusal  string // a part of it
	}{
		{"alike", Versions{1, 1}, nil, Hello{Version: 1, Min: 1, Max: 1}, Negotiated{Version: 1}, ""},
		{"the first release", Versions{1, 3}, []string{"a"}, Hello{Version: 1}, Negotiated{Version: 1}, ""},
		{"the highest in common", Versions{1, 3}, nil, Hello{Min: 2, Max: 5}, Negotiated{Version: 3}, ""},
		{"the highest in common, the other way", Versions{2, 5}, nil, Hello{Min: 1, Max: 3}, Negotiated{Version: 3}, ""},
		{"features in common", Versions{1, 1}, []string{"x", "b", "a"}, Hello{Min: 1, Max: 1, Features: []string{"c", "b", "x", "b"}},
			Negotiated{Version: 1, Features: []string{"b", "x"}}, ""},
		{"the peer is too old", Versions{3, 4}, nil, Hello{Min: 1, Max: 2}, Negotiated{}, "version 1 to 2, this node 3 to 4: upgrade the peer"},
		{"this node is too old", Versions{1, 1}, nil, Hello{Min: 2, Max: 4}, Negotiated{}, "version 2 to 4, this node 1: upgrade this node"},
		{"the first release is too old", Versions{2, 2}, nil, Hello{Version: 1}, Negotiated{}, "upgrade the peer"},
		{"no version", Versions{1, 1}, nil, Hello{}, Negotiated{}, "announces"},
		{"turned round", Versions{1, 3}, nil, Hello{Min: 3, Max: 1}, Negotiated{}, "announces"},
		{"more than a byte", Versions{1, 3}, nil, Hello{Min: 1, Max: 256}, Negotiated{}, "announces"},
		{"too many features", Versions{1, 1}, nil, Hello{Version: 1, Features: many}, Negotiated{}, "features"},
	} {
		got, err := negotiate(c.own, c.features, &c.peer)
		if c.refusal != "" {
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.refusal) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
		for _, f := range c.features {
			if got.Has(f) != slices.Contains(c.want.Features, f) {
				t.Errorf("%s: Has(%q) is %v", c.name, f, got.Has(f))
			}
		}
	}
	n := Negotiated{Version: 2}
	if err := n.chosen(&Hello{Version: 1}); !errors.Is(err, ErrRefused) {
		t.Errorf("an acceptor that chose another version: %v", err)
	}
}

// Two releases on one link: they meet at the highest version in common, with the features in
// common, and messages pass.
func TestReleasesTogether(t *testing.T) {
	for _, c := range []struct {
		name   string
		a, b   Versions
		fa, fb []string
		want   Negotiated
	}{
		{"alike", Versions{}, Versions{}, nil, nil, Negotiated{Version: 1}},
		{"node a is newer", Versions{1, 2}, Versions{1, 1}, []string{"f", "g"}, []string{"f"}, Negotiated{Version: 1, Features: []string{"f"}}},
		{"node b is newer", Versions{1, 1}, Versions{1, 2}, nil, []string{"f"}, Negotiated{Version: 1}},
		{"both are newer", Versions{1, 2}, Versions{2, 3}, []string{"g", "f"}, []string{"f", "g"}, Negotiated{Version: 2, Features: []string{"f", "g"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			a := run(t, Config{Self: pair.A, Listen: l, Versions: c.a, Features: c.fa})
			b := run(t, Config{Self: pair.B, Dial: l.Addr().String(), Versions: c.b, Features: c.fb})
			a.wait(t, "up 1")
			b.wait(t, "up 1")
			for _, e := range []*end{a, b} {
				if got, ok := e.Negotiated(1); !ok || !reflect.DeepEqual(got, c.want) {
					t.Errorf("%+v %v, want %+v", got, ok, c.want)
				}
				if _, ok := e.Negotiated(2); ok {
					t.Error("a link that is not there was negotiated")
				}
			}
			a.Send(1, &pair.Msg{Type: pair.MsgMirror, ID: 1})
			b.Send(1, &pair.Msg{Type: pair.MsgHeartbeat, ID: 2})
			a.Kick()
			b.Kick()
			b.wait(t, fmt.Sprintf("1: %d/1 ", pair.MsgMirror))
			a.wait(t, fmt.Sprintf("1: %d/2 ", pair.MsgHeartbeat))
		})
	}
}

// oldHello is the hello of the first release, byte by byte: one version, no range, no features.
func oldHello(t *testing.T, c net.Conn, role string) map[string]any {
	t.Helper()
	raw := []byte(`{"version":1,"cluster":"c","pair":"p","node":"b","role":"` + role + `","link":9,"error":""}`)
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)); err != nil {
		t.Fatal(err)
	}
	var l [4]byte
	if _, err := c.Read(l[:]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(l[:]))
	for n := 0; n < len(b); {
		k, err := c.Read(b[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	var h map[string]any
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestPeerOfTheFirstRelease(t *testing.T) {
	l := listen(t)
	a := run(t, Config{Self: pair.A, Listen: l, Versions: Versions{1, 2}, Features: []string{"f"}})
	for _, role := range []string{"data", "beat"} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		// What that release checks of the answer.
		if h := oldHello(t, c, role); h["version"] != 1.0 || h["error"] != "" || h["node"] != "a" {
			t.Fatalf("answered %v", h)
		}
	}
	a.wait(t, "up 1")
	if got, ok := a.Negotiated(1); !ok || got.Version != 1 || len(got.Features) > 0 {
		t.Fatalf("%+v %v", got, ok)
	}
}

func TestReleasesTooFarApart(t *testing.T) {
	l := listen(t)
	a := run(t, Config{Self: pair.A, Listen: l, Versions: Versions{2, 3}})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := oldHello(t, c, "data")
	if text, _ := h["error"].(string); !strings.Contains(text, "version 1, this node 2 to 3: upgrade the peer") {
		t.Fatalf("answered %v", h)
	}
	if got := a.all(); len(got) > 0 {
		t.Fatalf("came up all the same: %q", got)
	}
}
