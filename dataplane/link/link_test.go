package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// end is one node's link and what it brought, as lines.
type end struct {
	linked
	mu    sync.Mutex
	n     uint64
	lines []string
	more  chan struct{}
	stop  func()
}

func (e *end) line(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, fmt.Sprintf(format, args...))
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *end) Up(n uint64) {
	e.mu.Lock()
	e.n = n
	e.mu.Unlock()
	e.line("up %d", n)
}

func (e *end) Messages(n uint64, list []*pair.Msg) {
	for _, m := range list {
		e.line("%d: %d/%d %s", n, m.Type, m.ID, m.Data)
	}
}

func (e *end) Down(n uint64, reset bool, _ string) { e.line("down %d reset %v", n, reset) }

func (e *end) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.lines...)
}

func (e *end) wait(t *testing.T, want string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		for _, l := range e.all() {
			if l == want {
				return
			}
		}
		select {
		case <-e.more:
		case <-limit:
			t.Fatalf("%q did not come; came: %q", want, e.all())
		}
	}
}

func run(t *testing.T, cfg Config) *end {
	t.Helper()
	e := &end{more: make(chan struct{}, 1)}
	e.stop = start(t, cfg, e)
	return e
}

// linked is a handler's own link.
type linked struct{ *Link }

func (x *linked) set(l *Link) { x.Link = l }

// start runs one end until the test ends, or it is stopped.
func start(t testing.TB, cfg Config, h interface {
	Handler
	set(*Link)
}) (stop func()) {
	t.Helper()
	cfg.Cluster, cfg.Pair = "c", "p"
	cfg.Logger = slog.New(slog.DiscardHandler)
	l := New(cfg, h)
	h.set(l)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func pairOf(t *testing.T) (a, b *end) {
	t.Helper()
	l := listen(t)
	a = run(t, Config{Self: pair.A, Listen: l})
	b = run(t, Config{Self: pair.B, Dial: l.Addr().String()})
	a.wait(t, "up 1")
	b.wait(t, "up 1")
	return a, b
}

func TestFramesArriveInOrder(t *testing.T) {
	a, b := pairOf(t)
	const count = 2000
	for i := range count {
		a.Send(1, &pair.Msg{Type: pair.MsgMirror, ID: uint64(i), Data: []byte("x")})
		b.Send(1, &pair.Msg{Type: pair.MsgMirrorAck, ID: uint64(i)})
		if i%7 == 0 {
			a.Kick()
			b.Kick()
		}
		if i%100 == 0 {
			b.Send(1, &pair.Msg{Type: pair.MsgHeartbeat, ID: uint64(i)})
		}
	}
	b.Send(7, &pair.Msg{Type: pair.MsgMirror, ID: 99999}) // of another link: dropped
	a.Kick()
	b.Kick()
	b.wait(t, fmt.Sprintf("1: %d/%d x", pair.MsgMirror, count-1))
	a.wait(t, fmt.Sprintf("1: %d/%d ", pair.MsgMirrorAck, count-1))
	for _, e := range []*end{a, b} {
		next := 0
		for _, l := range e.all() {
			var n, ty, id int
			if c, _ := fmt.Sscanf(l, "%d: %d/%d", &n, &ty, &id); c != 3 || pair.MsgType(ty) == pair.MsgHeartbeat {
				continue
			}
			if id != next {
				t.Fatalf("message %d came when %d was due", id, next)
			}
			next++
		}
		if next != count {
			t.Fatalf("%d messages, want %d", next, count)
		}
	}
}

func TestBreakMakesANewLink(t *testing.T) {
	a, b := pairOf(t)
	a.Break("test")
	a.wait(t, "down 1 reset false") // given up here
	b.wait(t, "down 1 reset true")  // closed over there
	a.wait(t, "up 2")
	b.wait(t, "up 2")
	a.Send(1, &pair.Msg{Type: pair.MsgMirror, ID: 1}) // of the old link: dropped
	a.Send(2, &pair.Msg{Type: pair.MsgMirror, ID: 2})
	a.Kick()
	b.wait(t, fmt.Sprintf("2: %d/2 ", pair.MsgMirror))
	for _, e := range []*end{a, b} {
		state := ""
		for _, l := range e.all() {
			word, _, _ := strings.Cut(l, " ")
			switch {
			case word == "up" && state == "up", word == "down" && state != "up":
				t.Fatalf("up and down do not alternate: %q", e.all())
			case word == "up" || word == "down":
				state = word
			case strings.HasPrefix(l, "2: ") && strings.HasSuffix(l, "/1 "):
				t.Fatalf("a message of the old link came on the new one: %q", l)
			}
		}
	}
}

func TestPeerThatEnds(t *testing.T) {
	a, b := pairOf(t)
	b.stop()
	a.wait(t, "down 1 reset true")
}

// A peer whose old connections are half dead connects again: the new link takes the old one's
// place.
func TestReplacedLink(t *testing.T) {
	l := listen(t)
	a := run(t, Config{Self: pair.A, Listen: l})
	dial := func(role string, n uint64) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := writeHello(c, Hello{Version: Version, Cluster: "c", Pair: "p", Node: "b", Role: role, Link: n}); err != nil {
			t.Fatal(err)
		}
		if h, err := readHello(c); err != nil || h.Error != "" {
			t.Fatal(h, err)
		}
		return c
	}
	dial("data", 5)
	dial("beat", 5)
	a.wait(t, "up 1")
	dial("beat", 77) // no data connection of that number waits
	dial("data", 6)
	c := dial("beat", 6)
	a.wait(t, "down 1 reset false")
	a.wait(t, "up 2")
	if _, err := c.Write([]byte("this is no frame at all, but long enough to fill a whole header: " + strings.Repeat("x", headerLen))); err != nil {
		t.Fatal(err)
	}
	a.wait(t, "down 2 reset false")
}

func TestAcceptorRefuses(t *testing.T) {
	l := listen(t)
	a := run(t, Config{Self: pair.A, Listen: l})
	for name, send := range map[string]func(net.Conn) error{
		"another pair": func(c net.Conn) error {
			return writeHello(c, Hello{Version: Version, Cluster: "c", Pair: "q", Node: "b", Role: "data"})
		},
		"a hello too long": func(c net.Conn) error {
			_, err := c.Write(binary.BigEndian.AppendUint32(nil, maxHello+1))
			return err
		},
		"no JSON": func(c net.Conn) error {
			_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, 3), "abc"...))
			return err
		},
	} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := send(c); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		h, err := readHello(c)
		if err != nil || h.Error == "" {
			t.Errorf("%s: answered %+v, %v", name, h, err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection stays open: %v", name, err)
		}
		_ = c.Close()
	}
	if got := a.all(); len(got) > 0 {
		t.Fatalf("came up all the same: %q", got)
	}
}

// More than the sockets take at once, both ways, neither reading faster than the other writes: it
// all comes through.
func TestFullSockets(t *testing.T) {
	a, b := pairOf(t)
	data := make([]byte, 1<<20)
	for i := range 64 {
		for _, e := range []*end{a, b} {
			e.Send(1, &pair.Msg{Type: pair.MsgCopyData, ID: uint64(i), Data: data[:1<<20-i]})
			e.Kick()
		}
	}
	for _, e := range []*end{a, b} {
		e.Send(1, &pair.Msg{Type: pair.MsgMirror, ID: 64})
		e.Kick()
	}
	a.wait(t, fmt.Sprintf("1: %d/64 ", pair.MsgMirror))
	b.wait(t, fmt.Sprintf("1: %d/64 ", pair.MsgMirror))
}
