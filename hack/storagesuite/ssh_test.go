package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/crypto/ssh"
)

// The client goes the way of Kubernetes' tests: to the bastion, from there to port 22 of a node,
// and runs a command there.
func TestCommandsOnNodes(t *testing.T) {
	n, err := serveNodes(t.TempDir(), func(ctx context.Context, address, command string, stdout, stderr io.Writer) (int, error) {
		if address != "192.0.2.7" {
			return 0, errors.New("no such node")
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode(), nil
		}
		return 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	key, err := os.ReadFile(n.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ClientConfig{User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	bastion, err := ssh.Dial("tcp", n.listener.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer bastion.Close()

	run := func(address, command string) (string, string, error) {
		t.Helper()
		conn, err := bastion.Dial("tcp", address+":22")
		if err != nil {
			t.Fatal(err)
		}
		c, chans, reqs, err := ssh.NewClientConn(conn, address, config)
		if err != nil {
			t.Fatal(err)
		}
		client := ssh.NewClient(c, chans, reqs)
		defer client.Close()
		s, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		s.Stdout, s.Stderr = &stdout, &stderr
		err = s.Run(command)
		return stdout.String(), stderr.String(), err
	}
	if out, errs, err := run("192.0.2.7", "echo out; echo err >&2"); err != nil || out != "out\n" || errs != "err\n" {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	var exit *ssh.ExitError
	if _, _, err := run("192.0.2.7", "exit 3"); !errors.As(err, &exit) || exit.ExitStatus() != 3 {
		t.Errorf("exit status 3 came as %v", err)
	}
	if _, errs, err := run("192.0.2.8", "true"); !errors.As(err, &exit) || exit.ExitStatus() != 255 || errs != "no such node\n" {
		t.Errorf("a node that is not there: %q, %v", errs, err)
	}

	other, err := serveNodes(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if c, err := ssh.Dial("tcp", other.listener.Addr().String(), config); err == nil {
		c.Close()
		t.Error("the key of another run was taken")
	}
}
