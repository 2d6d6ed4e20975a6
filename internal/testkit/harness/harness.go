// Package harness runs a real pair for tests, the demo and benchmarks: two gemel-target processes
// on loopback addresses with a file arbiter. What it starts it stops, by process id.
package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
)

// Names of the nodes; they index the arrays below.
var Names = [2]string{"a", "b"}

// Options of a pair. The zero value of each field has the default given.
type Options struct {
	Dir    string // everything is made below it; required
	Binary string // gemel-target; required, see Build
	// Programs are other builds of gemel-target, of one node each; default Binary. What is set here
	// counts from the node's next start. Flags that their release may not know are for PerNode.
	Programs [2]string
	State    [2]string // state folders; default Dir/a and Dir/b
	Log      io.Writer // the processes' log; default Dir/<node>.log
	Args     []string  // more flags for both
	// PerNode are more flags for one.
	PerNode [2][]string
	// Wrap is a command that a node is started by, with the node's own command as further
	// arguments, which it has to become (exec).
	Wrap [2][]string
	// Arbiter is the record's file as each node sees it; default Dir/record.json for both.
	Arbiter [2]string
	// Net places the nodes elsewhere than on loopback.
	Net *Network
	// Supervised nodes are started again, after a back-off, when their processes have ended because
	// they left.
	Supervised bool
	// Supervisors are processes of their own, which start a node's process again when it crashes,
	// and report its end to the other node: PID and Kill concern the supervisor, Crash the process.
	Supervisors bool
	// InCluster and Name of the pair; default Cluster and PairName.
	InCluster, Name string
}

// Network is where the nodes of a pair are when they are not on loopback: addresses as host:port,
// and what brings a process there. Beyond loopback the nodes need certificates (Options.PerNode).
type Network struct {
	ISCSI, Control, Metrics [2]string
	Supervisor              [2]string // needed for Options.Supervisors only
	Link                    string    // node a's
	// Portals are where hosts reach the nodes; default ISCSI.
	Portals [2]string
	// Enter is called on the thread that starts a node's process, which is not used for anything
	// else afterwards: the place to enter a network namespace. May be nil.
	Enter [2]func() error
	// Credentials are those of the control API's client.
	Credentials credentials.TransportCredentials
}

// Pair is two nodes.
type Pair struct {
	Options
	ISCSI, Control, Metrics [2]string // host:port; a node that is started again may be given another
	portals                 [2]string
	supervisor              [2]string
	link                    string
	clients                 [2]*grpc.ClientConn

	mu    sync.Mutex
	procs [2]*proc
	last  [2]*proc // the process that was started last, which may be ending
	super [2]supervisor

	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup // supervisors
}

type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Build compiles a command of this module into dir and returns its path.
func Build(ctx context.Context, dir, pkg string, flags ...string) (string, error) {
	out := filepath.Join(dir, filepath.Base(pkg))
	args := append([]string{"build", "-o", out}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = Root()
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, b)
	}
	return out, nil
}

// Root is the folder of the module's source.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}

// New lays a pair out; StartNode starts its processes.
func New(o Options) (*Pair, error) {
	if o.Dir == "" || o.Binary == "" {
		return nil, errors.New("harness: Dir and Binary are needed")
	}
	o.InCluster, o.Name = cmp.Or(o.InCluster, Cluster), cmp.Or(o.Name, PairName)
	p := &Pair{Options: o, closed: make(chan struct{})}
	creds := insecure.NewCredentials()
	if o.Net == nil {
		if err := p.onLoopback(); err != nil {
			return nil, err
		}
	} else {
		p.ISCSI, p.Control, p.Metrics, p.supervisor, p.link = o.Net.ISCSI, o.Net.Control, o.Net.Metrics, o.Net.Supervisor, o.Net.Link
		creds = o.Net.Credentials
		p.portals = o.Net.Portals
	}
	for i := range Names {
		p.portals[i] = cmp.Or(p.portals[i], p.ISCSI[i])
	}
	for i, n := range Names {
		if p.State[i] == "" {
			p.State[i] = filepath.Join(o.Dir, n)
		}
		if p.Arbiter[i] == "" {
			p.Arbiter[i] = filepath.Join(p.Dir, "record.json")
		}
		var err error
		p.clients[i], err = grpc.NewClient(p.Control[i], grpc.WithTransportCredentials(creds),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
		if err != nil {
			return nil, err
		}
	}
	return p, os.MkdirAll(o.Dir, 0o755)
}

// onLoopback finds free ports.
func (p *Pair) onLoopback() error {
	hosts := [2]string{"127.0.0.1", "127.0.0.2"}
	for i, list := range []*[2]string{&p.ISCSI, &p.Control, &p.Metrics, &p.supervisor} {
		port, err := freeport.On(hosts[:]...)
		if err != nil {
			return fmt.Errorf("harness: port %d: %w", i, err)
		}
		for k, h := range hosts {
			list[k] = fmt.Sprintf("%s:%d", h, port)
		}
	}
	var err error
	p.link, err = freeport.Addr(hosts[0])
	return err
}

// Cluster and PairName name what New lays out, unless Options do.
const (
	Cluster  = "demo"
	PairName = "p0"
)

// IQN is the target's name.
func (p *Pair) IQN() string { return "iqn.2026-11.storage.gemel:" + p.InCluster + "." + p.Name }

// Portals of both nodes, a first.
func (p *Pair) Portals() []string { return p.portals[:] }

// Link is where node a waits for node b.
func (p *Pair) Link() string { return p.link }

// Client reaches the control API of one node.
func (p *Pair) Client(i int) targetv1.TargetServiceClient {
	return targetv1.NewTargetServiceClient(p.clients[i])
}

// StartNode starts one process.
func (p *Pair) StartNode(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold(i)
	return p.start(i)
}

// start is StartNode; the caller holds mu.
func (p *Pair) start(i int) error {
	if p.procs[i] != nil {
		return fmt.Errorf("harness: node %s runs already", Names[i])
	}
	if pr := p.last[i]; pr != nil { // one that was asked to end holds the store until it has
		select {
		case <-pr.done:
		case <-time.After(endLimit):
			return fmt.Errorf("harness: node %s did not end within %v", Names[i], endLimit)
		}
	}
	args := []string{"--cluster", p.InCluster, "--pair", p.Name, "--node", Names[i], "--state-dir", p.State[i],
		"--arbiter", "file:" + p.Arbiter[i], "--iscsi-listen", p.ISCSI[i],
		"--portal", "a=" + p.portals[0], "--portal", "b=" + p.portals[1],
		"--control-listen", p.Control[i], "--metrics-listen", p.Metrics[i]}
	if i == 0 {
		args = append(args, "--link-listen", p.link)
	} else {
		args = append(args, "--link-peer", p.link)
	}
	if p.Supervisors {
		args = append(args, "--supervisor-listen", p.supervisor[i], "--peer-supervisor", p.supervisor[1-i])
	}
	if p.Programs[i] == "" { // tests and trials run on any filesystem
		args = append(args, "--full-copies")
	}
	args = append(append(args, p.Args...), p.PerNode[i]...)
	args = slices.Concat(p.Wrap[i], []string{cmp.Or(p.Programs[i], p.Binary)}, args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out := p.Log
	var f *os.File
	if out == nil {
		var err error
		if f, err = os.OpenFile(p.LogFile(i), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return err
		}
		out = f
	}
	cmd.Stdout, cmd.Stderr = out, out
	started := make(chan error)
	pr := &proc{cmd: cmd, done: make(chan struct{})}
	go func() {
		// The parent-death signal is tied to the thread that forks, so that thread has to live as
		// long as we do.
		runtime.LockOSThread()
		var err error
		if p.Net != nil && p.Net.Enter[i] != nil {
			err = p.Net.Enter[i]()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			pr.err = cmd.Wait()
		}
		if f != nil {
			_ = f.Close()
		}
		close(pr.done)
	}()
	if err := <-started; err != nil {
		return err
	}
	p.procs[i], p.last[i] = pr, pr
	if p.super[i].started = time.Now(); p.Supervised {
		p.wg.Go(func() { p.supervise(i, pr) })
	}
	return nil
}

// LogFile is where a node's log goes unless Options.Log is set.
func (p *Pair) LogFile(i int) string { return filepath.Join(p.Dir, Names[i]+".log") }

// PID of a running node, 0 if it does not run.
func (p *Pair) PID(i int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.procs[i] == nil {
		return 0
	}
	return p.procs[i].cmd.Process.Pid
}

// Ended says that a node's process has ended without having been asked to, and how. One that is to
// be started again is not meant.
func (p *Pair) Ended(i int) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.procs[i]
	if pr == nil {
		return false, nil
	}
	select {
	case <-pr.done:
		return !p.Supervised || !p.super[i].restarts(exitCode(pr.err)), pr.err
	default:
		return false, nil
	}
}

// Signal sends a signal to a running node.
func (p *Pair) Signal(i int, s syscall.Signal) error {
	pid := p.PID(i)
	if pid == 0 {
		return fmt.Errorf("harness: node %s does not run", Names[i])
	}
	return syscall.Kill(pid, s)
}

// endLimit bounds an orderly end.
const endLimit = 20 * time.Second

// stop signals a node and waits until it has ended.
func (p *Pair) stop(i int, s syscall.Signal, limit time.Duration) error {
	p.mu.Lock()
	pr := p.procs[i]
	p.procs[i] = nil
	p.hold(i)
	if pr == nil && s == syscall.SIGKILL {
		pr = p.last[i] // it may be ending in an orderly way: not any more
	}
	p.mu.Unlock()
	if pr == nil {
		return nil
	}
	child := 0
	if p.Supervisors {
		child = childOf(pr.cmd.Process.Pid)
	}
	_ = pr.cmd.Process.Signal(s)
	select {
	case <-pr.done:
		if s == syscall.SIGKILL {
			return orphaned(child)
		}
		return pr.err
	case <-time.After(limit):
		_ = pr.cmd.Process.Kill()
		<-pr.done
		return fmt.Errorf("harness: node %s did not end within %v of %v", Names[i], limit, s)
	}
}

// Kill ends a node as a crash does.
func (p *Pair) Kill(i int) error { return p.stop(i, syscall.SIGKILL, 10*time.Second) }

// Term ends a node in an orderly way.
func (p *Pair) Term(i int) error { return p.stop(i, syscall.SIGTERM, endLimit) }

// Start starts both and waits until they are in sync.
func (p *Pair) Start(ctx context.Context) error {
	for i := range Names {
		if err := p.StartNode(i); err != nil {
			return err
		}
	}
	return p.WaitInSync(ctx)
}

// Close ends everything: the second node to stop is alone by then, as in a real shutdown.
func (p *Pair) Close() error {
	var errs []error
	for i := range Names {
		errs = append(errs, p.Term(i), p.supervisedErr(i))
	}
	p.once.Do(func() { close(p.closed) })
	p.wg.Wait()
	for _, c := range p.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Status of one node.
func (p *Pair) Status(ctx context.Context, i int) (*targetv1.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return p.Client(i).GetStatus(ctx, &targetv1.GetStatusRequest{})
}

// Wait polls until ok or the context ends; what it last saw is in the error.
func Wait(ctx context.Context, what string, ok func() (bool, string)) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		done, saw := ok()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; last seen: %s", what, ctx.Err(), saw)
		case <-t.C:
		}
	}
}

// WaitInSync waits until both nodes say that they are in sync.
func (p *Pair) WaitInSync(ctx context.Context) error {
	return Wait(ctx, "both nodes are in sync", func() (bool, string) {
		var saw []string
		all := true
		for i := range Names {
			s, err := p.Status(ctx, i)
			if err != nil {
				all = false
				saw = append(saw, Names[i]+": "+err.Error())
				continue
			}
			all = all && s.Phase == targetv1.Phase_PHASE_IN_SYNC
			saw = append(saw, fmt.Sprintf("%s: %v %s", Names[i], s.Phase, s.Reason))
		}
		return all, strings.Join(saw, "; ")
	})
}

// WaitPhase waits for one node's phase.
func (p *Pair) WaitPhase(ctx context.Context, i int, want targetv1.Phase) error {
	return Wait(ctx, fmt.Sprintf("node %s is %v", Names[i], want), func() (bool, string) {
		s, err := p.Status(ctx, i)
		if err != nil {
			return false, err.Error()
		}
		return s.Phase == want, fmt.Sprintf("%v %s", s.Phase, s.Reason)
	})
}
