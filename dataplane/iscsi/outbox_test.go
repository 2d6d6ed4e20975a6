package iscsi

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// Answers that the Device has left to leave together go out with its Send, or with what somebody
// else has to send, and not before.
func TestAnswersLeaveTogether(t *testing.T) {
	for name, send := range map[string]func(*client, *scsi.Outbox){
		"by their owner":      func(_ *client, out *scsi.Outbox) { out.Send() },
		"with another answer": func(c *client, _ *scsi.Outbox) { c.send(c.request(pdu.NopOut, pdu.Final, true), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b := serve(t, nil, nil)
			c := b.connect(t)
			const n = 5
			for range n {
				c.send(c.hold(), nil)
			}
			c.ping()
			before := b.stats.Batches.Load()
			var out scsi.Outbox
			if got := b.dev.end(&out); got != n {
				t.Fatalf("%d commands are held, want %d", got, n)
			}
			if s := b.Sessions()[0]; s.InFlight != 0 {
				t.Fatalf("%d commands are in flight after their end", s.InFlight)
			}
			if got := b.stats.Batches.Load(); got != before {
				t.Errorf("%d answers left before they were sent", got-before)
			}
			send(c, &out)
			for range n {
				if r, _ := c.recv(); r.Op() != pdu.SCSIResp {
					t.Fatalf("opcode %#x", r.Op())
				}
			}
			if got := b.stats.Batches.Load(); got != before+1 {
				t.Errorf("%d system calls for %d answers that leave together", got-before, n)
			}
			out.Send() // too late, which harms nothing
		})
	}
}

// A session that ends while answers of it are left takes them with it.
func TestAnswersOfASessionThatEnds(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	c.send(c.hold(), nil)
	c.ping()
	var out scsi.Outbox
	b.dev.end(&out)
	_ = c.nc.Close()
	deadline := time.Now().Add(bound)
	for len(b.Sessions()) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the session does not end")
		}
		time.Sleep(time.Millisecond)
	}
	out.Send()
}

// What commands make the other node do leaves when the reader has taken in what has come, before it
// waits for more, and after startsAt commands at the latest.
func TestStartsLeaveBeforeTheReaderWaits(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	sent := make(chan int, 100)
	b.dev.mu.Lock()
	b.dev.starts = func(t *scsi.Task) {
		if t.Starts == nil {
			sent <- -1
			return
		}
		t.Starts.Leave(startNote{sent})
	}
	b.dev.mu.Unlock()
	var all []byte
	const n = 2*startsAt + 3
	for range n {
		all = append(all, c.encode(c.hold(), nil, nil)...)
	}
	if _, err := c.nc.Write(all); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		select {
		case k := <-sent:
			if k < 0 {
				t.Fatal("the reader gives no outbox")
			}
		case <-time.After(bound):
			t.Fatalf("%d of 3 parts left, and nothing more comes", i)
		}
	}
	c.ping()
	if got := b.dev.end(nil); got != n {
		t.Errorf("%d commands came, want %d", got, n)
	}
}

type startNote struct{ sent chan int }

func (s startNote) Send() { s.sent <- 1 }
