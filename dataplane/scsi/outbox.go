package scsi

// Sender has something queued that another party waits for: the answers of a session, the messages
// of a link. Send begins to send it and waits for nothing.
type Sender interface{ Send() }

// Outbox has what a goroutine is to send, so that what it does one after the other leaves together:
// a system call for each answer costs more than most commands. It belongs to that goroutine, which
// sends before it does anything that may wait: no answer waits for the next command. A nil Outbox
// keeps nothing.
type Outbox struct {
	list []Sender
	left int
}

// Leave leaves s to be sent, or sends it at once if o is nil. The caller holds no lock.
func (o *Outbox) Leave(s Sender) {
	if o == nil {
		s.Send()
		return
	}
	o.left++
	for _, x := range o.list {
		if x == s {
			return
		}
	}
	o.list = append(o.list, s)
}

// SendAt sends if something was left n times since the last Send.
func (o *Outbox) SendAt(n int) {
	if o != nil && o.left >= n {
		o.Send()
	}
}

// Send sends all that was left, in the order in which the senders came first.
func (o *Outbox) Send() {
	if o == nil || o.left == 0 {
		return
	}
	o.left = 0
	for _, s := range o.list {
		s.Send()
	}
	clear(o.list)
	o.list = o.list[:0]
}
