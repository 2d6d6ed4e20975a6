package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// open makes a node that is not run, and closes its store.
func open(cfg Config) error {
	n, err := New(cfg)
	if err == nil {
		err = n.store.Close()
	}
	return err
}

func TestStateDirOfAnother(t *testing.T) {
	p := newTestPair(t)
	if err := open(p.cfg[0]); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		want   error
		says   string
	}{
		"cluster": {func(c *Config) { c.Cluster = "other" }, store.ErrForeign, "test"},
		"pair":    {func(c *Config) { c.Pair = "p9" }, store.ErrForeign, "p0"},
		"node":    {func(c *Config) { c.Node, c.LinkPeer = "b", c.LinkListen }, store.ErrForeign, `"a"`},
	} {
		cfg := p.cfg[0]
		c.change(&cfg)
		if err := open(cfg); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := filepath.Join(p.cfg[0].StateDir, "store.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rec map[string]any
	if err := json.Unmarshal(raw, &rec); err != nil {
		t.Fatal(err)
	}
	rec["format"] = store.Format + 1
	newer, _ := json.Marshal(rec)
	if err := os.WriteFile(file, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(p.cfg[0]); !errors.Is(err, store.ErrNewer) {
		t.Errorf("newer: %v", err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := New(p.cfg[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := open(p.cfg[0]); !errors.Is(err, store.ErrLocked) {
		t.Errorf("in use: %v", err)
	}
	if err := n.store.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := p.cfg[0]
	cfg.Arbiter = "file:" + filepath.Join(t.TempDir(), "no", "such", "record")
	if err := open(cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "arbiter") {
		t.Errorf("arbiter: %v", err)
	}
}

// Everything that the pair confirmed is there after both nodes have stopped and started, and a file
// that no metadata names is reported and left alone.
func TestMetadataOutlivesRestart(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(4<<20, "b")
	c := p.client(0)
	snapshot := uuid.NewString()
	if _, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snapshot, Name: "s", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	want, err := c.GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		t.Fatal(err)
	}
	index := p.nodes[0].View().LogIndex
	for _, i := range []int{1, 0} {
		if err := p.stop(i); err != nil {
			t.Fatal(err)
		}
	}
	orphan := p.image(0, uuid.NewString())
	if err := os.WriteFile(orphan, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	log := p.keepLog(0)
	p.start(0)
	p.until("node a serves alone again", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	if !strings.Contains(log.String(), "orphan") || !strings.Contains(log.String(), strings.TrimSuffix(filepath.Base(orphan), ".img")) {
		t.Errorf("the orphan is not reported:\n%s", log.String())
	}
	if _, err := os.Stat(orphan); err != nil {
		t.Errorf("the orphan was touched: %v", err)
	}
	got, err := c.GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != want.Name || got.SizeBytes != want.SizeBytes || got.Wwid != want.Wwid || len(got.Mappings) != 1 || got.Mappings[0].Lun != m.Lun {
		t.Errorf("got %v, want %v", got, want)
	}
	s, err := c.ListSnapshots(p.ctx, &targetv1.ListSnapshotsRequest{SourceLunUuid: id})
	if err != nil || len(s.Snapshots) != 1 || s.Snapshots[0].Uuid != snapshot {
		t.Errorf("snapshots %v, %v", s, err)
	}
	if v := p.nodes[0].View(); v.LogIndex < index {
		t.Errorf("log index %d, before %d", v.LogIndex, index)
	}
	p.start(1)
	p.inSync()
}

func TestMissingFileIsNamed(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(1<<20, "a")
	for i := range p.nodes {
		if err := p.stop(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(p.image(1, id)); err != nil {
		t.Fatal(err)
	}
	p.start(1) // the one that served last
	p.until("b says which file is missing", func() bool {
		v := p.nodes[1].View()
		return v.Phase == pair.Alone && v.Serving && strings.Contains(v.Reason, "the file of LUN "+id) && strings.Contains(v.Reason, "is missing")
	})
}
