package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"
)

// nodes lets the suite's tests that stop kubelets reach the nodes as they want to, by SSH. Nodes of
// kind have no SSH server, but Kubernetes' tests go through a bastion if one is configured: this is
// the bastion, on loopback. It answers for every node itself, and runs commands there by other
// means (docker exec).
type nodes struct {
	listener net.Listener
	config   *ssh.ServerConfig
	keyFile  string
	// run runs a command on the node with this address, and gives its exit status.
	run func(ctx context.Context, address, command string, stdout, stderr io.Writer) (int, error)
}

// serveNodes starts to listen. The only key that it takes, and has, is made now and written to
// folder.
func serveNodes(folder string, run func(context.Context, string, string, io.Writer, io.Writer) (int, error)) (*nodes, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "storage suite")
	if err != nil {
		return nil, err
	}
	n := &nodes{run: run, keyFile: filepath.Join(folder, "storage-suite.key")}
	if err := os.WriteFile(n.keyFile, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	n.config = &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(signer.PublicKey().Marshal()) {
			return nil, errors.New("not the key of this run")
		}
		return nil, nil
	}}
	n.config.AddHostKey(signer)
	if n.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("bastion: %w", err)
	}
	go func() {
		for {
			c, err := n.listener.Accept()
			if err != nil {
				return
			}
			go n.serve(c, "")
		}
	}()
	return n, nil
}

// environment is what e2e.test reads.
func (n *nodes) environment() []string {
	return []string{"KUBE_SSH_BASTION=" + n.listener.Addr().String(), "KUBE_SSH_KEY=" + n.keyFile, "KUBE_SSH_USER=root"}
}

// Close ends listening and removes the key.
func (n *nodes) Close() {
	_ = n.listener.Close()
	_ = os.Remove(n.keyFile)
}

// serve speaks SSH on one connection. On the bastion's own (no address) a client asks to be
// connected on to a node; what it then says is a second SSH connection, which is served with the
// node's address.
func (n *nodes) serve(c net.Conn, address string) {
	defer c.Close()
	conn, channels, requests, err := ssh.NewServerConn(c, n.config)
	if err != nil {
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for ch := range channels {
		switch {
		case address == "" && ch.ChannelType() == "direct-tcpip":
			var to struct {
				Host       string
				Port       uint32
				OriginHost string
				OriginPort uint32
			} // RFC 4254 §7.2
			if err := ssh.Unmarshal(ch.ExtraData(), &to); err != nil {
				_ = ch.Reject(ssh.ConnectionFailed, err.Error())
				continue
			}
			if c, reqs, err := ch.Accept(); err == nil {
				go ssh.DiscardRequests(reqs)
				go n.serve(stream{c}, to.Host)
			}
		case address != "" && ch.ChannelType() == "session":
			if c, reqs, err := ch.Accept(); err == nil {
				go n.session(c, reqs, address)
			}
		default:
			_ = ch.Reject(ssh.UnknownChannelType, ch.ChannelType())
		}
	}
}

// session runs the one command of a session.
func (n *nodes) session(c ssh.Channel, requests <-chan *ssh.Request, address string) {
	defer c.Close()
	for r := range requests {
		var req struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &req) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		status, err := n.run(ctx, address, req.Command, c, c.Stderr())
		cancel()
		if err != nil {
			fmt.Fprintln(c.Stderr(), err)
			status = 255 // as ssh(1) does
		}
		_, _ = c.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
		return
	}
}

// stream makes a channel of one connection the ground of another.
type stream struct{ ssh.Channel }

func (stream) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (stream) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (stream) SetDeadline(time.Time) error      { return nil }
func (stream) SetReadDeadline(time.Time) error  { return nil }
func (stream) SetWriteDeadline(time.Time) error { return nil }
