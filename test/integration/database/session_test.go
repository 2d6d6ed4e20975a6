package database

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// session is a client of a database, the one that the database comes with: it is given statements
// over a pipe, and answers over another one.
type session struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	errs bytes.Buffer // read only after the process has ended
	echo string       // the command that prints its argument
	n    int
	over bool
}

// open starts a client, which has to end at its first error.
func open(cmd *exec.Cmd, echo string) (*session, error) {
	s := &session{cmd: cmd, echo: echo}
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out, cmd.Stderr = bufio.NewScanner(stdout), &s.errs
	// Without a limit, a child of the client that holds the pipe would keep Wait waiting.
	cmd.WaitDelay = 10 * time.Second
	return s, cmd.Start()
}

// do sends statements and returns what they print. Without an error the database has acknowledged
// all of them.
func (s *session) do(statements string) ([]string, error) {
	s.n++
	mark := fmt.Sprintf("done %d", s.n)
	if _, err := fmt.Fprintf(s.in, "%s\n%s '%s'\n", statements, s.echo, mark); err != nil {
		return nil, s.failed(err)
	}
	var lines []string
	for s.out.Scan() {
		if s.out.Text() == mark {
			return lines, nil
		}
		lines = append(lines, s.out.Text())
	}
	return lines, s.failed(s.out.Err())
}

// failed adds what the client had to say.
func (s *session) failed(err error) error {
	s.over = true
	_ = s.in.Close()
	err = errors.Join(err, s.cmd.Wait())
	return fmt.Errorf("%s: %w: %s", s.cmd.Args[0], errors.Join(err, errors.New("the client has ended")), strings.TrimSpace(s.errs.String()))
}

// end ends the client in an orderly way, if it has not ended.
func (s *session) end() error {
	if s.over {
		return nil
	}
	s.over = true
	_ = s.in.Close()
	for s.out.Scan() { // Wait closes the pipe, so everything is read before it
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", s.cmd.Args[0], err, strings.TrimSpace(s.errs.String()))
	}
	return nil
}

// until polls with a bound that belongs to every wait of this package.
func until(ctx context.Context, limit time.Duration, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return harness.Wait(ctx, what, func() (bool, string) { return ok(), "not yet" })
}
