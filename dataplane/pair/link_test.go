package pair

import "testing"

// Two standings that cross on the wire must not answer each other for ever: the link would carry
// nothing else.
func TestCrossingSyncsEnd(t *testing.T) {
	r := alone(t, A)
	r.linkUp()
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce, in.Durable = 99, 0 // not ready to join: nothing else happens
	mine := r.sent(MsgSync)
	r.sync(in) // changed: answered, with a number that the peer's next one has not seen
	r.sent(MsgSync)
	raw := r.m.link.peerRaw
	r.recv(&Msg{Type: MsgSync, ID: 2, Aux: int64(mine.ID), Meta: raw})
	r.notSent(MsgSync)
}

// A peer that has not heard our present state gets it.
func TestUnheardStandingIsSaidAgain(t *testing.T) {
	r := alone(t, A)
	r.linkUp()
	in := r.peerInfo(Outside)
	in.Durable = 0
	r.sent(MsgSync)
	r.sync(in)
	r.sent(MsgSync)
	r.recv(&Msg{Type: MsgSync, ID: 2, Aux: 0, Meta: r.m.link.peerRaw})
	r.sent(MsgSync)
}

// A node that has hosts lets the preferred one go first by a moment only: what is silent is more
// often dead than cut off. One that no host is connected to waits for a whole lease more.
func TestPolitenessInSilence(t *testing.T) {
	margin := lease/50 + 5*ms
	for name, c := range map[string]struct {
		self    Node
		nexuses int
		waits   int64
	}{
		"preferred":                {A, 1, lease + margin},
		"not preferred":            {B, 1, lease + margin + lease/20},
		"preferred, without hosts": {A, 0, 2*lease + margin},
		"without hosts":            {B, 0, 2*lease + margin},
	} {
		t.Run(name, func(t *testing.T) {
			r := paired(t, c.self)
			r.m.SetNexuses(c.nexuses)
			r.recv(&Msg{Type: MsgHeartbeat, ID: 1, Aux: 1}) // the last one
			r.queue = nil
			r.pass(c.waits - 10*ms)
			r.none(ActArbiterCAS)
			r.pass(30 * ms)
			r.cas()
		})
	}
}
