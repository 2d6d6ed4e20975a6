package link

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/pki"
)

// sealedConfig is TLS for both ends of a test's link.
func sealedConfig(t testing.TB) *tls.Config {
	t.Helper()
	a, _, err := pki.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Issue(pki.TargetURI("c", "p", "a"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
}

// Messages of all sizes, both ways at once and more than the sockets take, arrive as they were
// sent, in their order, encrypted or not: also while the other side does not read.
func TestMessagesOfAllSizes(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", sealed), func(t *testing.T) {
			l := listen(t)
			ca, cb := Config{Self: pair.A, Listen: l}, Config{Self: pair.B, Dial: l.Addr().String()}
			if sealed {
				ca.TLS = sealedConfig(t)
				cb.TLS = ca.TLS
			}
			a, b := runChecked(t, ca), runChecked(t, cb)
			na, nb := <-a.up, <-b.up
			sizes := []int{0, 1, 111, 4096, 16 << 10, sealSize - headerLen, sealSize, sealSize + 1, 100_000, 1 << 20, 3<<20 + 7, 4096, 0}
			const rounds = 6
			var wg sync.WaitGroup
			for _, x := range []struct {
				e *checked
				n uint64
			}{{a, na}, {b, nb}} {
				wg.Go(func() {
					id := uint64(0)
					for range rounds {
						for i, size := range sizes {
							id++
							x.e.Send(x.n, &pair.Msg{Type: pair.MsgCopyData, ID: id, Data: filled(id, size), Meta: filled(id, i*100)})
							if i%3 == 0 {
								x.e.Kick()
							}
						}
						x.e.Kick()
					}
				})
			}
			wg.Wait()
			for _, e := range []*checked{a, b} {
				e.await(t, uint64(rounds*len(sizes)))
			}
		})
	}
}

func filled(id uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(id + uint64(i)*7)
	}
	return b
}

// checked is an end that checks what comes.
type checked struct {
	linked
	up   chan uint64
	mu   sync.Mutex
	last uint64
	bad  string
	more chan struct{}
}

func runChecked(t *testing.T, cfg Config) *checked {
	e := &checked{up: make(chan uint64, 1), more: make(chan struct{}, 1)}
	start(t, cfg, e)
	return e
}

func (e *checked) Up(n uint64)               { e.up <- n }
func (e *checked) Down(uint64, bool, string) {}

func (e *checked) Messages(_ uint64, list []*pair.Msg) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range list {
		if e.last++; m.ID != e.last || !bytes.Equal(m.Data, filled(m.ID, len(m.Data))) || !bytes.Equal(m.Meta, filled(m.ID, len(m.Meta))) {
			e.bad = fmt.Sprintf("message %d of %d + %d bytes came as number %d", m.ID, len(m.Meta), len(m.Data), e.last)
		}
	}
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *checked) await(t *testing.T, n uint64) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		e.mu.Lock()
		last, bad := e.last, e.bad
		e.mu.Unlock()
		if bad != "" {
			t.Fatal(bad)
		}
		if last == n {
			return
		}
		select {
		case <-e.more:
		case <-limit:
			t.Fatalf("%d of %d messages came", last, n)
		}
	}
}

// What is complete is handed over before the reader waits for the rest of the next message, and
// what comes together is handed over together.
func TestBatchesEndBeforeTheReaderWaits(t *testing.T) {
	l := listen(t)
	got := make(chan []uint64, 10)
	e := &batches{got: got, up: make(chan struct{})}
	start(t, Config{Self: pair.A, Listen: l}, e)
	dial := func(role string) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := writeHello(c, Hello{Version: Version, Cluster: "c", Pair: "p", Node: "b", Role: role, Link: 5}); err != nil {
			t.Fatal(err)
		}
		if h, err := readHello(c); err != nil || h.Error != "" {
			t.Fatal(h, err)
		}
		return c
	}
	data := dial("data")
	dial("beat")
	<-e.up
	var raw []byte
	for i := range uint64(3) {
		var h [headerLen]byte
		m := &pair.Msg{Type: pair.MsgMirror, ID: i, Data: []byte("data")}
		putHeader(h[:], Version, m)
		raw = append(append(raw, h[:]...), m.Data...)
	}
	cut := len(raw) - 2 // two whole ones, and the third without its end
	if _, err := data.Write(raw[:cut]); err != nil {
		t.Fatal(err)
	}
	want := [][]uint64{{0, 1}, {2}}
	for i, w := range want {
		select {
		case ids := <-got:
			if fmt.Sprint(ids) != fmt.Sprint(w) {
				t.Fatalf("%v are handed over together, want %v", ids, w)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%v wait for what comes after them", w)
		}
		if i == 0 {
			if _, err := data.Write(raw[cut:]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type batches struct {
	linked
	got chan []uint64
	up  chan struct{}
}

func (e *batches) Up(uint64)                 { close(e.up) }
func (e *batches) Down(uint64, bool, string) {}
func (e *batches) Messages(_ uint64, list []*pair.Msg) {
	var ids []uint64
	for _, m := range list {
		ids = append(ids, m.ID)
	}
	e.got <- ids
}

// liveWire is a wire whose handshake is over, and the other end of it.
func liveWire(t *testing.T) (*wire, net.Conn) {
	t.Helper()
	l := listen(t)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	other := <-accepted
	if other == nil {
		t.Fatal("not accepted")
	}
	t.Cleanup(func() { _ = other.Close() })
	_ = other.SetReadDeadline(time.Now().Add(30 * time.Second))
	w := newWire(c, true)
	w.goLive()
	return w, other
}

// count fills b with numbers that continue from byte at on.
func count(b []byte, at int) {
	for i := 0; i < len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(at+i))
	}
}

// counted reads n bytes that count has filled.
func counted(t *testing.T, c net.Conn, n int) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for at := 0; at < n; at += len(buf) {
		if _, err := io.ReadFull(c, buf); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(buf); i += 8 {
			if got := binary.BigEndian.Uint64(buf[i:]); got != uint64(at+i) {
				t.Fatalf("%d comes where %d is due", got, at+i)
			}
		}
	}
}

// A write to a live wire never waits, whatever the other side does, and while a goroutine waits for
// the socket; drain brings the rest.
func TestWireNeverWaits(t *testing.T) {
	w, other := liveWire(t)
	const total = 64 << 20
	block := make([]byte, 1<<20)
	var drained chan error
	for sent := 0; sent < total; sent += len(block) {
		count(block, sent)
		wrote := make(chan error, 1)
		go func() {
			_, err := w.Write(block)
			wrote <- err
		}()
		select {
		case err := <-wrote:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second): // nobody reads yet
			t.Fatalf("a write waits after %d MiB", sent>>20)
		}
		if drained == nil && !w.flush() {
			drained = make(chan error, 1)
			go func() { drained <- w.drain(20 * time.Second) }()
		}
	}
	if drained == nil {
		t.Fatalf("the socket took %d MiB that nobody reads", total>>20)
	}
	counted(t, other, total)
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	if !w.flush() || cap(w.out) > wireKeep {
		t.Errorf("an idle wire keeps %d bytes", cap(w.out))
	}
	_ = other.Close()
	deadline := time.Now().Add(20 * time.Second)
	var err error
	for err == nil && time.Now().Before(deadline) {
		_, err = w.Write(block[:4096])
	}
	if err == nil {
		t.Error("a broken socket takes everything")
	}
}

// What is written while a goroutine waits for the socket comes after what that one has.
func TestWireKeepsOrder(t *testing.T) {
	w, other := liveWire(t)
	const total = 96 << 20
	var wg sync.WaitGroup
	wg.Go(func() {
		block := make([]byte, 192<<10)
		var drains sync.WaitGroup
		defer drains.Wait()
		for sent := 0; sent < total; sent += len(block) {
			count(block, sent)
			w.cork()
			_, _ = w.Write(block)
			if !w.flush() && sent%(3<<20) == 0 { // one at a time, as a connection has one writer
				drains.Wait()
				drains.Go(func() { _ = w.drain(20 * time.Second) })
			}
		}
		drains.Wait()
		if err := w.drain(20 * time.Second); err != nil {
			t.Error(err)
		}
	})
	counted(t, other, total)
	wg.Wait()
}

// BenchmarkSend is what it costs to send a batch of mirrored writes, and to receive it.
func BenchmarkSend(b *testing.B) {
	for _, sealed := range []bool{false, true} {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("TLS=%v/batch=%d", sealed, n), func(b *testing.B) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				ca, cb := Config{Self: pair.A, Listen: l}, Config{Self: pair.B, Dial: l.Addr().String()}
				if sealed {
					ca.TLS = sealedConfig(b)
					cb.TLS = ca.TLS
				}
				slab := make([]byte, 1<<20)
				cb.Alloc = func(n int) []byte { return slab[:n] }
				x, y := &counting{up: make(chan uint64, 1)}, &counting{up: make(chan uint64, 1), done: make(chan struct{}, 1), want: n}
				start(b, ca, x)
				start(b, cb, y)
				link := <-x.up
				<-y.up
				data := make([]byte, 4096)
				b.SetBytes(int64(n * len(data)))
				for b.Loop() {
					for range n {
						x.Send(link, &pair.Msg{Type: pair.MsgMirror, Data: data})
					}
					x.Kick()
					<-y.done
				}
			})
		}
	}
}

type counting struct {
	linked
	up         chan uint64
	done       chan struct{}
	want, have int
}

func (e *counting) Up(n uint64)               { e.up <- n }
func (e *counting) Down(uint64, bool, string) {}
func (e *counting) Messages(_ uint64, list []*pair.Msg) {
	if e.have += len(list); e.have >= e.want && e.want > 0 {
		e.have = 0
		e.done <- struct{}{}
	}
}
