package node

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// fill gives a node that is alone metadata of so many bytes, as an earlier release may have come
// to, durably.
func (p *testPair) fill(i, bytes int) {
	p.t.Helper()
	n := p.nodes[i]
	// An entry that is durable and not shown yet would replace the state with a draft that has
	// nothing of this.
	p.until("no entry of the log is under way", func() bool {
		n.md.mu.Lock()
		if n.md.work != nil {
			n.md.mu.Unlock()
			return false
		}
		return true
	})
	defer n.md.mu.Unlock()
	const each = 64 << 10
	for k := range bytes / each {
		iqn := fmt.Sprintf("iqn.2026-11.storage.gemel.test:many-%d", k)
		n.md.state.Hosts[iqn] = &meta.Host{IQN: iqn, CHAP: meta.CHAP{User: strings.Repeat(string(rune('a'+k%26)), each)}}
	}
	if err := n.persistAll(n.md.state); err != nil {
		p.t.Fatal(err)
	}
}

// metadata is what a node holds, as a joiner is given it.
func (p *testPair) metadata(i int) string {
	p.t.Helper()
	n := p.nodes[i]
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	raw, err := json.Marshal(n.md.state)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(raw)
}

// loneWith is a pair whose node a is alone with so many bytes of metadata, and one LUN.
func loneWith(t *testing.T, bytes int, change func(p *testPair)) *testPair {
	t.Helper()
	p := newTestPair(t)
	change(p)
	p.startBoth()
	p.lun(mib, "a")
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && !v.Linked })
	p.fill(0, bytes)
	return p
}

func TestJoinerWithLargeMetadata(t *testing.T) {
	p := loneWith(t, 40*mib, func(*testPair) {})
	p.start(1)
	p.inSync()
	var want string
	p.until("both have the same metadata", func() bool { // a machine that starves has them part and meet again meanwhile
		want = p.metadata(0)
		return p.metadata(1) == want
	})
	if len(want) < 40*mib {
		t.Fatalf("%d bytes of metadata", len(want))
	}
	for i, n := range p.nodes {
		if z := n.md.bytes.Load(); z < int64(len(want))*99/100 || z > int64(len(want))*101/100 {
			t.Errorf("node %d counts %d bytes of %d", i, z, len(want))
		}
	}
	hosts, err := json.Marshal(p.nodes[1].md.state.Hosts)
	if err != nil {
		t.Fatal(err)
	}
	p.end(1)
	n, err := New(p.cfg[1]) // from its own disk
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.store.Close() }()
	if got, err := json.Marshal(n.md.state.Hosts); err != nil || string(got) != string(hosts) {
		t.Errorf("%d of %d bytes are durable, %v", len(got), len(hosts), err)
	}
}

// cutter passes a link on, and cuts it once when so many bytes have come from the one who listens.
type cutter struct {
	left atomic.Int64
	cuts atomic.Int64
}

func (c *cutter) serve(t *testing.T, to string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	keep := func(conns ...net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		open = append(open, conns...)
	}
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, x := range open {
			_ = x.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			keep(in, out)
			wg.Go(func() {
				_, _ = io.Copy(out, in)
				_ = out.Close()
			})
			wg.Go(func() {
				defer func() { _, _ = in.Close(), out.Close() }()
				buf := make([]byte, 64<<10)
				for {
					n, err := out.Read(buf)
					if err != nil {
						return
					}
					if left := c.left.Add(-int64(n)); left <= 0 && left > -int64(n) {
						c.cuts.Add(1)
						return
					}
					if _, err := in.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

func TestLinkThatIsCutWithinTheMetadata(t *testing.T) {
	var c cutter
	c.left.Store(1 << 60)
	p := loneWith(t, 40*mib, func(p *testPair) { p.cfg[1].LinkPeer = c.serve(t, p.cfg[0].LinkListen) })
	want := p.metadata(0)
	c.left.Store(20 * mib)
	p.start(1)
	p.inSync()
	if c.cuts.Load() != 1 {
		t.Fatalf("the link was cut %d times", c.cuts.Load())
	}
	if p.metadata(1) != want {
		t.Error("other metadata than the source's")
	}
}

// Metadata that do not add up are not installed, in part or as a whole.
func TestDamagedMetadata(t *testing.T) {
	p := loneWith(t, 2*mib, func(*testPair) {})
	n := p.nodes[0]
	before := p.metadata(0)
	other := meta.NewState()
	other.Index = 77
	raw, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	for name, change := range map[string]func(m *pair.Msg){
		"a bit":       func(m *pair.Msg) { m.Meta[3] ^= 1 },
		"a byte less": func(m *pair.Msg) { m.Meta = m.Meta[:len(m.Meta)-1] },
		"another sum": func(m *pair.Msg) { m.Sum[0] ^= 1 },
		"no sum":      func(m *pair.Msg) { m.Sum = []byte{} },
	} {
		m := &pair.Msg{Aux: 77, Meta: append([]byte{}, raw...), Sum: append([]byte{}, sum[:]...)}
		change(m)
		if _, _, err := n.installState(m); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if p.metadata(0) != before {
			t.Fatalf("%s: the metadata have changed", name)
		}
	}
}

// A partner of a release that takes one frame gets what fits; if it does not, both say what to do,
// and after its upgrade it joins.
func TestLargeMetadataAndAnEarlierRelease(t *testing.T) {
	p := loneWith(t, 20*mib, func(p *testPair) { p.cfg[1].earlier = true })
	events := p.keepLog(1)
	p.start(1)
	p.until("a says what to do", func() bool { return strings.Contains(p.nodes[0].Status(p.ctx).Reason, "upgrade node b") })
	if v := p.nodes[0].View(); v.Phase != pair.Alone || !v.Serving || !v.Linked {
		t.Errorf("a is %v, serving %v, linked %v", v.Phase, v.Serving, v.Linked)
	}
	_, err := p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "more", SizeBytes: mib})
	p.refuses(err, codes.ResourceExhausted, "upgrade node b")
	if strings.Contains(events.String(), "malformed") {
		t.Error("it was sent what it cannot read")
	}
	p.end(1)
	p.cfg[1].earlier = false
	p.start(1)
	p.inSync()
}

// What would make the metadata exceed their budget is refused by the name of its field and the
// limit; what is there, and what makes them smaller, is not.
func TestMetadataBudget(t *testing.T) {
	p := loneWith(t, maxMetadata-mib/2, func(*testPair) {})
	c, n := p.client(0), p.nodes[0]
	labels := map[string]string{}
	for i := range meta.MaxLabels {
		labels[fmt.Sprintf("k%02d", i)] = strings.Repeat("<", meta.MaxLabelSize-3) // six bytes each, as it is written
	}
	luns, err := c.ListLUNs(p.ctx, &targetv1.ListLUNsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	old := luns.Luns[0]
	made := 0
	for err == nil && made < 10 {
		_, err = c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: fmt.Sprint("l", made), SizeBytes: mib, Labels: labels})
		made++
	}
	p.refuses(err, codes.ResourceExhausted, fmt.Sprintf("limit of %d", maxMetadata))
	p.refuses(err, codes.ResourceExhausted, "labels")
	if used := n.md.bytes.Load(); used > maxMetadata {
		t.Errorf("%d bytes", used)
	}
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: old.Uuid, Name: old.Name, SizeBytes: old.SizeBytes, PreferredNode: "a"}); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	n.md.bytes.Store(maxMetadata)
	_, err = c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: old.Uuid, HostIqn: testHost + "2"})
	p.refuses(err, codes.ResourceExhausted, "host_iqn")
	e := &meta.Entry{PR: &meta.PR{UUID: old.Uuid, Req: scsi.PROut{Action: scsi.PRRegister, ServiceKey: 1}}}
	if err := n.affordable(e, e.Encode()); !errors.Is(err, meta.ErrExhausted) || !strings.Contains(err.Error(), "registrations") {
		t.Errorf("a registration: %v", err)
	}
	e.PR.Req = scsi.PROut{Action: scsi.PRPreempt, Key: 1, ServiceKey: 2}
	if err := n.affordable(e, e.Encode()); err != nil {
		t.Errorf("a preemption: %v", err)
	}
	if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: old.Uuid}); err != nil {
		t.Error(err)
	}
	if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: old.Uuid}); err != nil {
		t.Error(err)
	}
}

func TestSizesAddUp(t *testing.T) {
	var z sizes
	const b = "b"
	z.note(b, "x", 10)
	z.note(b, "y", 20)
	one := z.total
	z.note(b, "x", 15)
	if z.total != one+5 {
		t.Errorf("%d, then %d", one, z.total)
	}
	z.note(b, "x", 0)
	z.note(b, "y", 0)
	z.note(b, "z", 0)
	if z.total != 0 || len(z.of) != 0 {
		t.Errorf("%d bytes of %d objects are left", z.total, len(z.of))
	}
}
