package flakyapi

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// relay passes an answer on as it comes; one that breaks off upstream, or that is cut here, breaks
// off.
func relay(ctx context.Context, w http.ResponseWriter, res *http.Response, lag time.Duration) {
	for k, v := range res.Header {
		if k != "Connection" && k != "Transfer-Encoding" {
			w.Header()[k] = v
		}
	}
	w.WriteHeader(res.StatusCode)
	fl := http.NewResponseController(w)
	_ = fl.Flush() // a watch that has nothing to say yet has begun
	body := io.Reader(res.Body)
	if lag > 0 {
		late := behind(ctx, res.Body, lag)
		defer late.wait()
		body = late
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if _, werr := w.Write(buf[:n]); werr != nil {
			panic(http.ErrAbortHandler)
		}
		_ = fl.Flush()
		if err == io.EOF {
			if ctx.Err() != nil { // upstream has ended it because it was cut: to the client it is cut, not whole
				panic(http.ErrAbortHandler)
			}
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// late is a reader of what another reader had a while ago.
type late struct {
	ctx  context.Context
	from io.Closer
	lag  time.Duration
	got  chan part
	left part
	ends sync.WaitGroup
}

type part struct {
	bytes []byte
	err   error
	at    time.Time
}

// behind reads body, and gives out each part of it after lag.
func behind(ctx context.Context, body io.ReadCloser, lag time.Duration) *late {
	l := &late{ctx: ctx, from: body, lag: lag, got: make(chan part, 1024)}
	l.ends.Go(func() {
		for {
			p := part{bytes: make([]byte, 32<<10)}
			var n int
			n, p.err = body.Read(p.bytes)
			p.bytes, p.at = p.bytes[:n], time.Now()
			select {
			case l.got <- p:
			case <-ctx.Done():
				return
			}
			if p.err != nil {
				return
			}
		}
	})
	return l
}

// wait ends the reading of the body.
func (l *late) wait() {
	_ = l.from.Close()
	l.ends.Wait()
}

// Read implements io.Reader.
func (l *late) Read(to []byte) (int, error) {
	if len(l.left.bytes) == 0 && l.left.err == nil {
		select {
		case l.left = <-l.got:
			sleep(l.ctx, time.Until(l.left.at.Add(l.lag)))
		case <-l.ctx.Done():
		}
		if err := l.ctx.Err(); err != nil {
			l.left = part{err: err}
		}
	}
	n := copy(to, l.left.bytes)
	l.left.bytes = l.left.bytes[n:]
	if len(l.left.bytes) > 0 {
		return n, nil
	}
	return n, l.left.err
}
