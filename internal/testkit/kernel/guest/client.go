package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrExit: a command ended with another code than 0.
var ErrExit = errors.New("exit")

// Client of one guest's agent.
type Client struct {
	address string // host:port of the agent, as the test reaches it
	http    http.Client
}

// NewClient makes a client; nothing is sent yet.
func NewClient(address string) *Client { return &Client{address: address} }

// WaitReady waits until the guest has started. An emulated network accepts connections before the
// guest listens: attempts are short.
func (c *Client) WaitReady(ctx context.Context) error {
	for {
		once, cancel := context.WithTimeout(ctx, time.Second)
		err := c.call(once, http.MethodGet, "/ready", nil, nil)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("guest %s does not answer: %w", c.address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Run waits for a command; only a command that could not be run at all is an error.
func (c *Client) Run(ctx context.Context, req Command) (r Result, err error) {
	err = c.post(ctx, "/run", req, &r)
	return r, err
}

// Output is what the command wrote to stdout; another exit code than 0 is an error with what it
// wrote to stderr.
func (c *Client) Output(ctx context.Context, argv ...string) (string, error) {
	req := Command{Argv: argv}
	if end, ok := ctx.Deadline(); ok {
		req.Seconds = max(time.Until(end).Seconds()-0.5, 0.5) // so that it ends there, too
	}
	r, err := c.Run(ctx, req)
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("%w code %d: %s %s", ErrExit, r.Exit, r.Error, bytes.TrimSpace(append(r.Stderr, r.Stdout...)))
	}
	if err != nil {
		return string(r.Stdout), fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return string(r.Stdout), nil
}

// Shell is Output of a line of bash.
func (c *Client) Shell(ctx context.Context, line string) (string, error) {
	return c.Output(ctx, "bash", "-c", line)
}

// Start begins a process in the background.
func (c *Client) Start(ctx context.Context, req Command) (pid int, err error) {
	var p Process
	err = c.post(ctx, "/start", req, &p)
	return p.PID, err
}

// Look says whether a started process still runs.
func (c *Client) Look(ctx context.Context, pid int) (p Process, err error) {
	err = c.call(ctx, http.MethodGet, fmt.Sprintf("/process/%d", pid), nil, &p)
	return p, err
}

// Put writes a file of the guest, whole or not at all.
func (c *Client) Put(ctx context.Context, path string, mode uint32, data []byte) error {
	q := url.Values{"path": {path}, "mode": {fmt.Sprintf("%o", mode)}}
	return c.call(ctx, http.MethodPut, "/file?"+q.Encode(), data, nil)
}

// Get reads a file of the guest.
func (c *Client) Get(ctx context.Context, path string) (data []byte, err error) {
	err = c.call(ctx, http.MethodGet, "/file?"+url.Values{"path": {path}}.Encode(), nil, &data)
	return data, err
}

// Dial connects to a socket of the guest ("unix", a path; "tcp", host:port).
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/dial?"+url.Values{"network": {network}, "address": {address}}.Encode(), nil)
	if err == nil {
		err = r.Write(conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	from := bufio.NewReader(conn)
	a, err := http.ReadResponse(from, r)
	if err == nil && a.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(a.Body, 4096))
		err = fmt.Errorf("guest: dial %s %s: %s", network, address, bytes.TrimSpace(text))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &connection{conn, from}, nil
}

// connection reads first what came with the answer.
type connection struct {
	net.Conn
	from *bufio.Reader
}

func (c *connection) Read(b []byte) (int, error) { return c.from.Read(b) }

func (c *Client) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, body, out)
}

// call reads the answer into out: as it is into a *[]byte, else as JSON.
func (c *Client) call(ctx context.Context, method, path string, body []byte, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.address+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	a, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("guest: %s: %s: %s", path, a.Status, bytes.TrimSpace(data))
	}
	switch v := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*v = data
		return nil
	}
	return json.Unmarshal(data, out)
}
