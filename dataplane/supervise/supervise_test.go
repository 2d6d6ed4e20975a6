package supervise

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/certfiles"
	"github.com/gemel-storage/gemel/internal/pki"
)

func incarnations(lives []started) (out []pair.Incarnation) {
	for _, l := range lives {
		out = append(out, pair.Incarnation{Boot: "boot-a", Nonce: l.Nonce})
	}
	return out
}

// What has been reaped is reported, with the nonce that the process had, and nothing else: not the
// process that runs, nor one that is stopped.
func TestReportsWhatItHasReaped(t *testing.T) {
	r := newRig(t, "kill panic stay")
	r.run()
	p := r.follow(nil)
	lives := r.lives(3)
	if lives[0].Nonce == lives[1].Nonce || lives[1].Nonce == lives[2].Nonce {
		t.Fatalf("a nonce is given twice: %+v", lives)
	}
	want := incarnations(lives[:2])
	r.until("both are reported", func() bool { return slices.Equal(p.ended(), want) })
	if lives[2].Crashes != 2 || !strings.Contains(lives[2].Last, "exit code 2") || !strings.Contains(lives[1].Last, "SIGKILL") {
		t.Errorf("the third process got %+v, the second %+v", lives[2].Life, lives[1].Life)
	}
	if lives[2].Core != 0 {
		t.Errorf("core dumps of %d bytes", lives[2].Core)
	}
	if err := syscall.Kill(lives[2].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	late := r.follow(nil) // gets the whole list
	r.until("the second partner has a report", func() bool { return late.ended() != nil })
	if got := late.ended(); !slices.Equal(got, want) {
		t.Fatalf("while the third process is stopped %v is reported, not %v", got, want)
	}
	if err := syscall.Kill(lives[2].PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.ended()
	if r.code != 0 || r.err != nil {
		t.Fatalf("after an orderly stop: %d, %v", r.code, r.err)
	}
	r.until("the partner is not connected", func() bool { return !p.Connected() })
}

// What is no crash is for what runs the supervisor to judge.
func TestExitCodesArePassedOn(t *testing.T) {
	for _, x := range []struct {
		plan string
		code int
	}{{"0", 0}, {"1", 1}, {"3", 3}, {"kill 3", 3}} {
		t.Run(x.plan, func(t *testing.T) {
			r := newRig(t, x.plan)
			r.run()
			r.ended()
			if r.code != x.code || r.err != nil {
				t.Fatalf("%d, %v", r.code, r.err)
			}
		})
	}
}

// A process that is killed while it stops did not stop in an orderly way, and is not started again.
func TestKilledWhileItStops(t *testing.T) {
	r := newRig(t, "deaf")
	r.run()
	pid := r.lives(1)[0].PID
	r.stop()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.ended()
	if r.err == nil || len(livesIn(r.dir)) != 1 {
		t.Fatalf("%d, %v, %d processes", r.code, r.err, len(livesIn(r.dir)))
	}
}

func TestBackOff(t *testing.T) {
	var got []time.Duration
	for n := 1; n <= 9; n++ {
		got = append(got, waitAfter(n)/time.Second)
	}
	if waitAfter(1000) != time.Minute {
		t.Error(waitAfter(1000))
	}
	if want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// The process ends with its supervisor, whatever ends that.
func TestTheProcessEndsWithItsSupervisor(t *testing.T) {
	r := newRig(t, "deaf")
	cmd := exec.Command(os.Args[0], "supervisor")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.lives(1)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	f, err := os.OpenFile(filepath.Join(r.dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r.until("the process has let go of its lock", func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil })
}

// Without a supervisor there is no life, and what only looks like one is refused.
func TestSupervised(t *testing.T) {
	if l, err := Supervised(); l != nil || err != nil {
		t.Fatal(l, err)
	}
	for _, text := range []string{"", "1", `{"nonce":0}`, `{"nonce":-1}`} {
		t.Setenv(variable, text)
		if l, err := Supervised(); err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%q: %v, %v", text, l, err)
		}
	}
}

// A supervisor is believed about its own node only, and what is not a supervisor not at all.
func TestWhoIsBelieved(t *testing.T) {
	r := newRig(t, "kill stay")
	r.run()
	r.lives(2)
	for name, change := range map[string]func(*Follower){
		"another cluster": func(f *Follower) { f.Cluster = "d" },
		"another pair":    func(f *Follower) { f.Pair = "q" },
		"another node":    func(f *Follower) { f.Node = "b" },
		"no JSON":         func(f *Follower) { f.Addr = says(t, "220 mail ready\n") },
		"too long":        func(f *Follower) { f.Addr = says(t, strings.Repeat("x", 2*maxReport)) },
	} {
		p := &Follower{Cluster: "c", Pair: "p", Node: "a", Addr: r.addr, Dial: new(net.Dialer).DialContext, Logger: r.cfg.Logger,
			Ended: func(list []pair.Incarnation) { t.Errorf("%s: %v is believed", name, list) }}
		change(p)
		if err := p.briefly(); err == nil || p.Connected() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// says listens, and says one thing to each.
func says(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(text))
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// With certificates the supervisor reports to the partner only, and the partner accepts reports
// only from the supervisor of its partner.
func TestCertificates(t *testing.T) {
	ca, root, err := pki.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files := func(uri string) *certfiles.Files {
		p, err := ca.Issue(uri, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for name, text := range map[string][]byte{"crt": p.Cert, "key": p.Key, "ca": root.Cert} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := certfiles.Load(filepath.Join(dir, "crt"), filepath.Join(dir, "key"), filepath.Join(dir, "ca"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	r := newRig(t, "kill stay")
	r.cfg.TLS = files(pki.TargetURI("c", "p", "a"))
	r.run()
	lives := r.lives(2)
	side := func(own, other string) *partner {
		return r.follow(func(f *Follower) { f.TLS = files(own).Link(pki.RequireURI(other)) })
	}
	good := side(pki.TargetURI("c", "p", "b"), pki.TargetURI("c", "p", "a"))
	for name, p := range map[string]*partner{
		"a node of another pair":       side(pki.TargetURI("c", "q", "b"), pki.TargetURI("c", "p", "a")),
		"a caller of the control API":  side(pki.ControlURI("c"), pki.TargetURI("c", "p", "a")),
		"a partner that wants another": side(pki.TargetURI("c", "p", "b"), pki.TargetURI("c", "p", "b")),
		"one without a certificate":    r.follow(nil),
	} {
		if err := p.briefly(); err == nil || p.ended() != nil {
			t.Errorf("%s got %v: %v", name, p.ended(), err)
		}
	}
	r.until("the partner has the report", func() bool { return slices.Equal(good.ended(), incarnations(lives[:1])) })
}
