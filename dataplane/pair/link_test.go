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
