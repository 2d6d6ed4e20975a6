package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// fast gives both nodes a second backing volume.
func (p *testPair) fast() *testPair {
	for i := range p.cfg {
		p.cfg[i].BackingVolumes, p.cfg[i].SharedFilesystem = []string{"fast=" + p.volume(i)}, true
		p.cfg[i].Lease = Duration(2 * time.Second) // nothing here is about fail-over: a machine that is busy should cause none
	}
	return p
}

func (p *testPair) volume(i int) string { return p.cfg[i].StateDir + "-fast" }

func (p *testPair) inFast(i int, kind, id string) string {
	suffix := ".img"
	if kind == "intents" {
		suffix = ".bits"
	}
	return filepath.Join(p.volume(i), kind, id+suffix)
}

// lunIn makes a LUN in a backing volume, asked of node i, mapped to the test's host.
func (p *testPair) lunIn(i int, volume string) (string, *targetv1.Mapping) {
	p.t.Helper()
	id := uuid.NewString()
	l, err := p.client(i).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: 16 * mib, Volume: volume, PreferredNode: "a"})
	if err != nil {
		p.t.Fatal(err)
	}
	if l.Volume != volume {
		p.t.Fatalf("it is in %q", l.Volume)
	}
	m, err := p.client(i).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost})
	if err != nil {
		p.t.Fatal(err)
	}
	return id, m
}

func (p *testPair) alikeInFast(kind, id string) {
	p.t.Helper()
	if a, b := p.read(p.inFast(0, kind, id)), p.read(p.inFast(1, kind, id)); len(a) == 0 || !bytes.Equal(a, b) {
		p.t.Fatalf("the copies of %s/%s differ", kind, id)
	}
}

func (p *testPair) gone(path string) {
	p.t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		p.t.Errorf("%s is there: %v", path, err)
	}
}

func (p *testPair) refuses(err error, code codes.Code, says ...string) {
	p.t.Helper()
	if status.Code(err) != code {
		p.t.Errorf("%v, not %v", err, code)
	}
	for _, s := range says {
		if !strings.Contains(status.Convert(err).Message(), s) {
			p.t.Errorf("%v does not say %q", err, s)
		}
	}
}

// The life of a LUN in a second volume: made through either node, written, copied to a node that
// was away, snapshot, clone, deletion.
func TestLUNInAnotherVolume(t *testing.T) {
	p := newTestPair(t).fast().startBoth()
	c := p.client(1)
	id, m := p.lunIn(1, "fast")
	other, m2 := p.lunIn(0, "default")
	p.gone(p.image(0, id))
	p.gone(p.inFast(0, "luns", other))
	d, d2 := p.device(m), p.device(m2)
	p.write(d, 0, 1)
	p.write(d2, 0, 2)
	p.alikeInFast("luns", id)

	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && !v.Linked })
	p.write(d, 4*mib, 3)
	p.write(d2, 4*mib, 4)
	later, m3 := p.lunIn(0, "fast") // alone: node b is known to have it
	d3 := p.device(m3)
	p.write(d3, 0, 5)
	p.start(1)
	p.inSync()
	for _, x := range []string{id, later} {
		p.alikeInFast("luns", x)
	}
	p.alike(other)

	snap, clone, restored := uuid.NewString(), uuid.NewString(), uuid.NewString()
	if s, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil || s.Volume != "fast" {
		t.Fatal(s, err)
	}
	for _, req := range []*targetv1.CreateLUNRequest{{Uuid: clone, Name: "clone", SizeBytes: 16 * mib, SourceLunUuid: id}, {Uuid: restored, Name: "restored", SizeBytes: 20 * mib, SourceSnapshotUuid: snap}} {
		for _, elsewhere := range []string{"default", "slow"} {
			req.Volume = elsewhere
			_, err := c.CreateLUN(p.ctx, req)
			p.refuses(err, codes.InvalidArgument, "volume: ", "shares extents with its source", `"fast", not "`+elsewhere+`"`)
		}
		for _, req.Volume = range []string{"", "fast", ""} { // repeated: it is there
			if l, err := c.CreateLUN(p.ctx, req); err != nil || l.Volume != "fast" {
				t.Fatal(l, err)
			}
		}
		p.alikeInFast("luns", req.Uuid)
	}
	p.alikeInFast("snapshots", snap)
	_, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: 16 * mib})
	p.refuses(err, codes.AlreadyExists, `in backing volume "fast", not "default"`)
	if _, err := c.ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 24 * mib}); err != nil {
		t.Fatal(err)
	}
	for i := range p.cfg {
		if st, err := os.Stat(p.inFast(i, "luns", id)); err != nil || st.Size() != 24*mib {
			t.Errorf("node %d: %v %v", i, st, err)
		}
	}

	s := p.nodes[0].Status(p.ctx)
	if len(s.Volumes) != 2 || s.Volumes[0].Name != "default" || s.Volumes[1].Name != "fast" || !slices.Equal(s.Volumes[1].Nodes, []string{"a", "b"}) ||
		s.Volumes[1].FreeBytes == 0 || len(s.Volumes[1].Lacks) > 0 || s.CapacityBytes != s.Volumes[0].CapacityBytes+s.Volumes[1].CapacityBytes {
		t.Errorf("%+v", s)
	}
	if _, text := p.get(0, "/metrics"); !strings.Contains(text, `gemel_store_free_bytes{volume="fast"} `) || !strings.Contains(text, `gemel_store_capacity_bytes{volume="default"} `) {
		t.Error("the volumes have no metrics")
	}

	if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteSnapshot(p.ctx, &targetv1.DeleteSnapshotRequest{Uuid: snap}); err != nil {
		t.Fatal(err)
	}
	for i := range p.cfg {
		p.gone(p.inFast(i, "luns", id))
		p.gone(p.inFast(i, "intents", id))
		p.gone(p.inFast(i, "snapshots", snap))
	}
	p.alikeInFast("luns", clone)
}

// A node is refused without a volume that holds something, or with another one in its place; the
// pair continues meanwhile.
func TestStartWithoutAVolume(t *testing.T) {
	p := newTestPair(t).fast().startBoth()
	id, _ := p.lunIn(0, "fast")
	p.end(1)
	with := p.cfg[1]
	for name, c := range map[string]struct {
		volumes []string
		says    []string
	}{
		"not given":   {nil, []string{`backing volume "fast"`, "holds 1 LUNs", "--backing-volume fast=DIR"}},
		"another one": {[]string{"fast=" + t.TempDir()}, []string{`backing volume "fast"`, "had the id", "mount the former one"}},
	} {
		p.cfg[1].BackingVolumes = c.volumes
		err := open(p.cfg[1])
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range c.says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v does not say %q", name, err, s)
			}
		}
	}
	p.cfg[1] = with
	p.start(1)
	p.inSync()
	p.alikeInFast("luns", id)
	// What holds nothing may be left out, and come back.
	for _, volumes := range [][]string{append([]string{"more=" + t.TempDir()}, with.BackingVolumes...), with.BackingVolumes} {
		p.end(1)
		p.cfg[1].BackingVolumes = volumes
		p.start(1)
		p.inSync()
	}
}

// A LUN is made only where both nodes have the volume; a node that would come without one of those
// in use stays out, and says what it lacks.
func TestVolumeOfOneNode(t *testing.T) {
	p := newTestPair(t).fast()
	with := p.cfg[1]
	p.cfg[1].BackingVolumes = nil
	p.startBoth()
	make := func(i int, volume string) error {
		_, err := p.client(i).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: uuid.NewString(), SizeBytes: mib, Volume: volume})
		return err
	}
	for i := range p.cfg {
		p.refuses(make(i, "fast"), codes.InvalidArgument, `volume: node b: `, `backing volume "fast"`, "--backing-volume fast=DIR")
		p.refuses(make(i, "slow"), codes.InvalidArgument, `backing volume "slow"`)
		v := p.nodes[i].Status(p.ctx).Volumes
		if len(v) != 2 || !slices.Equal(v[1].Nodes, []string{"a"}) || !slices.Equal(v[1].Lacks, []string{"b"}) {
			t.Errorf("%v", v)
		}
	}
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && !v.Linked })
	if v := p.nodes[0].Status(p.ctx).Volumes; !slices.Equal(v[1].Lacks, []string{"b"}) {
		t.Errorf("%v", v)
	}
	p.refuses(make(0, "fast"), codes.InvalidArgument, `node b, which is not connected, has no backing volume "fast"`)
	p.end(0)
	p.start(0) // what it knew of node b is gone
	p.until("a is alone", func() bool { return p.nodes[0].View().Phase == pair.Alone && p.nodes[0].View().Serving })
	id, _ := p.lunIn(0, "fast")
	p.start(1)
	p.until("b says what it lacks", func() bool {
		return strings.Contains(p.nodes[1].Status(p.ctx).Reason, `LUNs in backing volume "fast", which node b does not have: start node b with --backing-volume fast=DIR`)
	})
	p.end(1)
	p.cfg[1] = with
	p.start(1)
	p.inSync()
	p.alikeInFast("luns", id)
}

// A release that knows one volume only is not given LUNs in others, neither by the log nor by a
// resync.
func TestEarlierRelease(t *testing.T) {
	p := newTestPair(t).fast()
	p.cfg[1].earlier = true
	p.startBoth()
	make := func() error {
		_, err := p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: uuid.NewString(), SizeBytes: mib, Volume: "fast"})
		return err
	}
	p.refuses(make(), codes.Unavailable, "upgrade node b")
	p.lunIn(0, "default")
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && !v.Linked })
	if err := make(); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.until("b is refused, and a says why", func() bool {
		return strings.Contains(p.nodes[1].Status(p.ctx).Reason, "metadata") && strings.Contains(p.nodes[0].Status(p.ctx).Reason, "the release of node b does not support")
	})
	p.end(1)
	p.cfg[1].earlier = false
	p.start(1)
	p.inSync()
}

func TestMergeOfTheVolumesOfBothNodes(t *testing.T) {
	own := map[string]volume{"default": {100, 50, true}, "fast": {10, 5, true}}
	for _, x := range []struct {
		peer *capacity
		away bool
		want string
	}{
		{&capacity{Volumes: map[string]volume{"default": {1, 1, false}, "cold": {7, 6, true}}}, true, "default 100 50 true a|fast 10 5 true a-b"},
		{nil, false, "default 100 50 true a|fast 10 5 true a"},
		{&capacity{Total: 90, Free: 60}, false, "default 90 50 true ab|fast 10 5 true a-b"}, // of an earlier release
		{&capacity{Volumes: map[string]volume{"default": {200, 40, false}, "cold": {7, 6, true}}}, false, "default 100 40 false ab|cold 7 6 true b-a|fast 10 5 true a-b"},
	} {
		var got []string
		for _, b := range merge("a", own, "b", x.peer, !x.away) {
			s := strings.Join([]string{b.Name, fmt.Sprint(b.CapacityBytes), fmt.Sprint(b.FreeBytes), fmt.Sprint(b.Reflink), strings.Join(b.Nodes, "")}, " ")
			if len(b.Lacks) > 0 {
				s += "-" + strings.Join(b.Lacks, "")
			}
			got = append(got, s)
		}
		if s := strings.Join(got, "|"); s != x.want {
			t.Errorf("%s, not %s", s, x.want)
		}
	}
}
