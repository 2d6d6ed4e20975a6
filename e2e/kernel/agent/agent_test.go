package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

func serve(t *testing.T) *guest.Client {
	s := httptest.NewServer(handler(newProcesses()))
	t.Cleanup(s.Close)
	return guest.NewClient(strings.TrimPrefix(s.URL, "http://"))
}

func TestAgentRunsCommands(t *testing.T) {
	c, ctx := serve(t), t.Context()
	r, err := c.Run(ctx, guest.Command{Argv: []string{"sh", "-c", `cat; echo "$X" >&2; exit 7`}, Env: []string{"X=y"}, Stdin: []byte("in")})
	if err != nil || r.Exit != 7 || string(r.Stdout) != "in" || string(r.Stderr) != "y\n" {
		t.Fatal(r, err)
	}
	if r, err = c.Run(ctx, guest.Command{Argv: []string{"sh", "-c", "kill -9 $$"}}); err != nil || r.Exit != 137 {
		t.Fatal(r, err)
	}
	if r, err = c.Run(ctx, guest.Command{Argv: []string{"/no/such/program"}}); err != nil || r.Exit != 127 || r.Error == "" {
		t.Fatal(r, err)
	}
	if r, err = c.Run(ctx, guest.Command{Argv: []string{"sh", "-c", "sleep 60 & sleep 60"}, Seconds: 0.2}); err != nil || r.Exit != 124 {
		t.Fatal(r, err)
	}
	if _, err := c.Run(ctx, guest.Command{}); err == nil {
		t.Fatal("no command was run")
	}
	if _, err := c.Shell(ctx, "echo why >&2; false"); !errors.Is(err, guest.ErrExit) || !strings.Contains(err.Error(), "why") {
		t.Fatal(err)
	}
}

func TestProcessGoesOn(t *testing.T) {
	c, ctx, dir := serve(t), t.Context(), t.TempDir()
	log := filepath.Join(dir, "log")
	pid, err := c.Start(ctx, guest.Command{Argv: []string{"sh", "-c", "echo begun; while [ ! -e " + dir + "/end ]; do sleep 0.02; done; exit 3"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.Look(ctx, pid); err != nil || !p.Running {
		t.Fatal(p, err)
	}
	if err := c.Put(ctx, dir+"/end", 0o600, nil); err != nil {
		t.Fatal(err)
	}
	var p guest.Process
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if p, err = c.Look(ctx, pid); err != nil || time.Now().After(end) {
			t.Fatal(p, err)
		}
		if !p.Running {
			break
		}
	}
	if got, err := c.Get(ctx, log); p.Exit != 3 || string(got) != "begun\n" || err != nil {
		t.Fatal(p, string(got), err)
	}
	if _, err := c.Look(ctx, 1); err == nil {
		t.Fatal("a process that the agent did not start")
	}
}

func TestAgentDialsSockets(t *testing.T) {
	c, ctx := serve(t), t.Context()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := c.Dial(ctx, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("there and back")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 14)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "there and back" {
		t.Fatal(string(got), err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Dial(ctx, "unix", path+".none"); err == nil {
		t.Fatal("connected to nothing")
	}
}
