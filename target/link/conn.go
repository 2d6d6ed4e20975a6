package link

import (
	"bufio"
	"net"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/target/pair"
)

// writeTimeout bounds one batch: a peer that takes nothing for this long is as good as gone.
const writeTimeout = 10 * time.Second

// conn is one of the two connections of a link. Send may be called under any lock: it only queues.
type conn struct {
	c       net.Conn
	r       *bufio.Reader
	mu      sync.Mutex
	queue   []*pair.Msg
	spare   []*pair.Msg
	wake    chan struct{}
	dead    chan struct{}
	once    sync.Once
	scratch [headerLen]byte
}

func newConn(c net.Conn) *conn {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
	return &conn{c: c, r: bufio.NewReaderSize(c, 256<<10), wake: make(chan struct{}, 1), dead: make(chan struct{})}
}

func (c *conn) send(m *pair.Msg) {
	c.mu.Lock()
	c.queue = append(c.queue, m)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) close() {
	c.once.Do(func() {
		close(c.dead)
		_ = c.c.Close()
	})
}

// writeLoop sends what is queued, a batch at a time with one writev, until the connection ends.
func (c *conn) writeLoop() {
	defer c.close()
	var headers []byte
	var bufs net.Buffers
	for {
		select {
		case <-c.wake:
		case <-c.dead:
			return
		}
		c.mu.Lock()
		batch := c.queue
		c.queue, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		for rest := batch; len(rest) > 0; {
			n := min(len(rest), 256)
			if need := n * headerLen; cap(headers) < need {
				headers = make([]byte, need)
			}
			bufs = bufs[:0]
			for i, m := range rest[:n] {
				h := headers[i*headerLen : (i+1)*headerLen]
				putHeader(h, m)
				bufs = append(bufs, h)
				if len(m.Meta) > 0 {
					bufs = append(bufs, m.Meta)
				}
				if len(m.Data) > 0 {
					bufs = append(bufs, m.Data)
				}
			}
			_ = c.c.SetWriteDeadline(time.Now().Add(writeTimeout))
			out := bufs
			if _, err := out.WriteTo(c.c); err != nil {
				return
			}
			rest = rest[n:]
		}
		clear(batch)
		c.mu.Lock()
		c.spare = batch[:0]
		c.mu.Unlock()
	}
}
