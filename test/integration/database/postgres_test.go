package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

// account is the user that the package makes: PostgreSQL refuses to run as root.
const account = "postgres"

// settings have data pages written all the time, soon after their log: shared buffers that hold a
// fraction of the tables, checkpoints every two megabytes of log, and writeback at once. What has
// to be right is on by default (fsync, full_page_writes, synchronous_commit), and named here
// because the test is about it.
var settings = map[string]string{
	"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
	"shared_buffers": "1MB", "wal_buffers": "64kB", "max_connections": "20",
	"max_wal_size": "4MB", "min_wal_size": "2MB", "checkpoint_completion_target": "0.5",
	"backend_flush_after": "8kB", "bgwriter_flush_after": "8kB", "checkpoint_flush_after": "8kB", "bgwriter_delay": "10ms",
	"autovacuum_naptime": "1s", "restart_after_crash": "off", "listen_addresses": "''", "log_checkpoints": "off",
	"max_parallel_workers": "0", "logging_collector": "off",
}

// server is a PostgreSQL whose data directory is on one place and whose log is on the other one.
type server struct {
	bin      string
	uid, gid uint32
	dir      string // of sockets and logs
	data     string
	log      string // pg_wal
	process  *lab.Process
	output   string // file of the process that was started last
	starts   int
}

// newServer skips where PostgreSQL is not installed.
func newServer(t *testing.T) *server {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_amcheck")
	if err != nil {
		t.Fatal(err)
	}
	u, uerr := user.Lookup(account)
	if len(found) == 0 || uerr != nil {
		t.Fatal("PostgreSQL 14 or later is not installed (Debian: postgresql); `make test-databases` installs it")
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &server{bin: filepath.Dir(slices.Max(found)), uid: uint32(uid), gid: uint32(gid)}
}

// command is a program of PostgreSQL, as its user.
func (s *server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.gid}, Setpgid: true}
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "LC_ALL=C")
	return cmd
}

func (s *server) run(ctx context.Context, name string, args ...string) (string, error) {
	var b bytes.Buffer
	cmd := s.command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Run(); err != nil {
		return b.String(), fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(b.String()))
	}
	return b.String(), nil
}

// make makes a new database cluster.
func (s *server) make(r *rig) error {
	s.dir = r.lab.Path("run")
	s.data, s.log = filepath.Join(r.places[0].path, "pg"), filepath.Join(r.places[1].path, "pg_wal")
	for _, d := range []string{s.dir, s.data, s.log} {
		if err := errors.Join(os.Mkdir(d, 0o700), os.Chown(d, int(s.uid), int(s.gid))); err != nil {
			return err
		}
	}
	if _, err := s.run(r.ctx, "initdb", "-D", s.data, "--waldir", s.log, "--wal-segsize=1", "--data-checksums", "--auth=trust", "--locale=C", "-E", "UTF8"); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for name, v := range settings {
		fmt.Fprintf(f, "%s = %s\n", name, v)
	}
	// What is not synced may be in a snapshot in part, as it may be after a loss of power.
	return errors.Join(f.Sync(), f.Close(), s.start(r))
}

// start starts the server and waits until it answers. The output of a server that ends is in the
// error.
func (s *server) start(r *rig) error {
	s.starts++
	s.output = filepath.Join(r.lab.Dir, fmt.Sprintf("postgres.%d.log", s.starts))
	var err error
	// The death signal is of a process that has given up root, so setpriv sets it.
	s.process, err = lab.Start("postgres", s.output, "setpriv", "--reuid", account, "--regid", account, "--clear-groups", "--pdeathsig", "QUIT",
		filepath.Join(s.bin, "postgres"), "-D", s.data, "-k", s.dir)
	if err != nil {
		return err
	}
	ended := false
	// A client that asks too early would be a FATAL in the output, which is judged.
	err = until(r.ctx, 2*time.Minute, "PostgreSQL is ready", func() bool {
		ended = s.process.Exited()
		return ended || strings.Contains(s.said(), "database system is ready to accept connections")
	})
	if ended {
		err = fmt.Errorf("PostgreSQL has ended: %s", complaint.FindString(s.said()))
	}
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, s.said())
	}
	return nil
}

// said is what the server that was started last has printed.
func (s *server) said() string {
	b, _ := os.ReadFile(s.output)
	return string(b)
}

// stop stops the server in an orderly way.
func (s *server) stop(r *rig) error {
	if s.process == nil || s.process.Exited() {
		return errors.New("PostgreSQL has ended before it was stopped:\n" + s.said())
	}
	_, err := s.run(r.ctx, "pg_ctl", "stop", "-D", s.data, "-m", "fast", "-w", "-t", "60")
	return errors.Join(err, s.process.Stop(10*time.Second))
}

// kill ends the server whatever it does: immediate shutdown, then by force.
func (s *server) kill() {
	if s.process != nil && !s.process.Exited() {
		_ = syscall.Kill(s.process.PID(), syscall.SIGQUIT)
		_ = until(context.Background(), 10*time.Second, "PostgreSQL has ended", s.process.Exited)
		_ = s.process.Stop(time.Second)
	}
}

// connect opens a session.
func (s *server) connect(ctx context.Context) (*session, error) {
	return open(s.command(ctx, "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", s.dir, "-d", "postgres"), `\echo`)
}
