package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// errQMP: the emulator refused a command.
var errQMP = errors.New("emulator")

// monitor is a connection to the emulator's control socket (QMP). One command at a time.
type monitor struct {
	conn net.Conn
	from *json.Decoder
}

// dialMonitor waits until the emulator listens; ended says that it never will.
func dialMonitor(ctx context.Context, path string, ended <-chan struct{}) (*monitor, error) {
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			m := &monitor{conn, json.NewDecoder(conn)}
			var hello json.RawMessage
			if err = m.from.Decode(&hello); err == nil {
				_, err = m.command(ctx, "qmp_capabilities", nil)
			}
			if err != nil {
				m.close()
			}
			return m, err
		}
		select {
		case <-ended:
			return nil, fmt.Errorf("the emulator has ended: %w", err)
		case <-ctx.Done():
			return nil, fmt.Errorf("no control socket: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *monitor) close() { _ = m.conn.Close() }

// command returns what the emulator answers; events in between are passed over.
func (m *monitor) command(ctx context.Context, name string, args any) (json.RawMessage, error) {
	req := map[string]any{"execute": name}
	if args != nil {
		req["arguments"] = args
	}
	b, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = m.conn.SetDeadline(time.Now()) })
	defer stop()
	if _, err := m.conn.Write(b); err != nil {
		return nil, err
	}
	for {
		var a struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := m.from.Decode(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if a.Error != nil {
			return nil, fmt.Errorf("%w: %s: %s", errQMP, name, a.Error.Desc)
		}
		if a.Return != nil {
			return a.Return, nil
		}
	}
}

// migrated waits until the machine's state has been written or read.
func (m *monitor) migrated(ctx context.Context) error {
	for {
		a, err := m.command(ctx, "query-migrate", nil)
		if err != nil {
			return err
		}
		var s struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := json.Unmarshal(a, &s); err != nil {
			return err
		}
		switch s.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("%w: the machine's state: %s %s", errQMP, s.Status, s.Error)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
