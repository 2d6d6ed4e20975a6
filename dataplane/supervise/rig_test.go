package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// The processes of the tests are this program itself. SUPERVISE_TEST names a folder: the n-th
// process does what the n-th word of its file "plan" says, the last word again and again, and
// appends what it was given to the file "lives".
const testVariable = "SUPERVISE_TEST"

func TestMain(m *testing.M) {
	dir := os.Getenv(testVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	if len(os.Args) > 1 && os.Args[1] == "supervisor" {
		os.Exit(superviseAgain(dir))
	}
	os.Exit(child(dir))
}

// started is what a process of a test leaves in "lives".
type started struct {
	Life
	PID  int
	Core uint64 // limit of a core dump, bytes
}

func child(dir string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	l, err := Supervised()
	if err == nil && l != nil && os.Getenv("SUPERVISE_TEST_AGAIN") == "" { // as package resident does
		err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), "SUPERVISE_TEST_AGAIN=1"))
	}
	if err != nil || l == nil {
		fmt.Fprintln(os.Stderr, "no life:", err)
		return 99
	}
	var core unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_CORE, &core)
	held, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the process before has not ended:", err)
		return 98
	}
	n := len(livesIn(dir))
	raw, _ := json.Marshal(started{*l, os.Getpid(), core.Cur})
	f, _ := os.OpenFile(filepath.Join(dir, "lives"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	_, _ = f.Write(append(raw, '\n'))
	_ = f.Close()
	plan, _ := os.ReadFile(filepath.Join(dir, "plan"))
	words := strings.Fields(string(plan))
	do, lun, _ := strings.Cut(words[min(n, len(words)-1)], ":")
	switch do {
	case "blame":
		l.Blame(lun)
		l.Blame("another") // it can crash for one reason only
		panic("as planned, by a command of " + lun)
	case "hear":
		l.Heard(Blame{LUN: lun, Node: "b", Nonce: 7, Ago: 30 * time.Second})
		panic("as planned, after it heard of " + lun)
	case "forgive":
		l.Forgive(lun)
		panic("as planned, after it forgave " + lun)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "panic":
		panic("as planned")
	case "stay":
		<-term
		return 0
	case "deaf":
		select {}
	default:
		code, _ := strconv.Atoi(do)
		return code
	}
	return 97
}

func livesIn(dir string) (out []started) {
	raw, _ := os.ReadFile(filepath.Join(dir, "lives"))
	for _, line := range strings.Split(string(raw), "\n") {
		var l started
		if json.Unmarshal([]byte(line), &l) == nil {
			out = append(out, l)
		}
	}
	return out
}

// superviseAgain is a supervisor in a process of its own.
func superviseAgain(dir string) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 96
	}
	code, err := Run(context.Background(), Config{Cluster: "c", Pair: "p", Node: "a", Boot: "boot", Listen: l, Logger: slog.Default()})
	fmt.Fprintln(os.Stderr, err)
	_ = dir
	return code
}

// rig is a supervisor under test.
type rig struct {
	t    *testing.T
	dir  string
	addr string
	cfg  Config
	stop context.CancelFunc
	done chan struct{}
	code int
	err  error
}

func newRig(t *testing.T, plan string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), done: make(chan struct{})}
	if err := os.WriteFile(filepath.Join(r.dir, "plan"), []byte(plan), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(testVariable, r.dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	r.cfg = Config{Cluster: "c", Pair: "p", Node: "a", Boot: "boot-a", Listen: l, Logger: slog.Default()}
	return r
}

func (r *rig) run() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.done)
		r.code, r.err = Run(ctx, r.cfg)
	}()
	r.t.Cleanup(func() { stop(); r.ended() })
}

func (r *rig) ended() {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(30 * time.Second):
		r.t.Fatal("the supervisor does not end")
	}
}

// lives waits for the n-th process.
func (r *rig) lives(n int) []started {
	r.t.Helper()
	var got []started
	r.until(fmt.Sprintf("%d processes were started", n), func() bool { got = livesIn(r.dir); return len(got) >= n })
	return got
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within 30 s: %s; %+v", what, livesIn(r.dir))
		}
	}
}

// partner follows a supervisor.
type partner struct {
	*Follower
	mu   sync.Mutex
	last []pair.Incarnation
	told int
	luns []Blame
}

func (r *rig) follow(change func(*Follower)) *partner {
	r.t.Helper()
	p := &partner{}
	p.Follower = &Follower{Cluster: "c", Pair: "p", Node: "a", Addr: r.addr, Dial: new(net.Dialer).DialContext, Logger: slog.Default(), Ended: func(list []pair.Incarnation) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.last, p.told = list, p.told+1
	}, Blames: func(list []Blame) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.luns = list
	}}
	if change != nil {
		change(p.Follower)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	r.t.Cleanup(func() { stop(); <-done })
	return p
}

// briefly follows for five seconds at most: one that is not refused would be followed for ever.
func (f *Follower) briefly() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return f.follow(ctx)
}

func (p *partner) blames() []Blame {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.luns
}

func (p *partner) ended() []pair.Incarnation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
