package initiator

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"
)

// TestUnsentBytesAreDropped: what a session had not sent when the initiator ended it never reaches
// the target, so that a command can be repeated over another session to it. A logout is no such
// end.
func TestUnsentBytesAreDropped(t *testing.T) {
	for _, v := range []struct {
		name string
		end  func(t *testing.T, s *Session)
		want error
	}{
		{"failed", func(t *testing.T, s *Session) {
			// Two MiB and more do not fit the buffers of a peer that does not read.
			const depth = 64
			answered := make(chan error, depth)
			for range depth {
				c := &Command{CDB: cdbBlocks(opWrite16, 0, 0, 2048), Out: make([]byte, 1<<20), Done: func(c *Command) { answered <- c.Err }}
				if err := s.Submit(c); err != nil {
					t.Fatal(err)
				}
			}
			s.fail(ErrPeerSilent)
			for range depth {
				if err := <-answered; !errors.Is(err, ErrSessionLost) {
					t.Errorf("command: %v", err)
				}
			}
		}, syscall.ECONNRESET},
		{"logged out", func(t *testing.T, s *Session) {
			if err := s.Logout(testContext(t)); err != nil {
				t.Logf("logout: %v", err) // the peer does not answer it
			}
		}, io.EOF},
	} {
		t.Run(v.name, func(t *testing.T) {
			ended, read := make(chan struct{}), make(chan error, 1)
			x := serveScript(t, func(x *scripted) {
				<-ended
				_, err := io.Copy(eofless{}, errReader{x.conn})
				read <- err
			})
			cfg := x.config()
			cfg.Timers = Timers{Logout: 50 * time.Millisecond}
			s, err := Login(testContext(t), cfg)
			if err != nil {
				close(ended)
				t.Fatal(err)
			}
			v.end(t, s)
			<-s.Done()
			close(ended)
			if err := <-read; !errors.Is(err, v.want) {
				t.Errorf("the peer reads to the end with %v, want %v", err, v.want)
			}
		})
	}
}

// errReader returns io.EOF as another error, which io.Copy returns.
type errReader struct{ io.Reader }

func (r errReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err == io.EOF {
		err = errors.Join(err)
	}
	return n, err
}

// eofless is a writer without ReadFrom.
type eofless struct{}

func (eofless) Write(b []byte) (int, error) { return len(b), nil }
