// Package balance decides which node of a pair owns which LUN. It is pure: no clock, socket, disk,
// goroutine or randomness. The chair of the pair asks it every few seconds with what both nodes
// have counted (View); the answer is a short list of moves with reasons. It needs neither the API
// server nor the operator: those pass policy and wishes on, and show what was decided.
//
// # Order of reasons
//
// The first reason that speaks for a LUN decides:
//
//  1. Pin: an administrator names the node (a rule, not a wish).
//  2. Connectivity: all active hosts of the LUN can use only the other node. Hosts that disagree move
//     a shared LUN only if that halves the bytes that have to be forwarded, and pays.
//  3. Fail-back: the LUN is not at home, home has been a member for Policy.FailBackDelay without
//     interruption, and the active hosts of the LUN can use it.
//  4. Balance of work, with nearness in it: the fewest moves that bring the difference between the
//     nodes under a bound. Each of them has to gain Policy.ROI times what it costs.
//
// No reason moves a LUN to a node that is not a member or that is drained.
//
// # What keeps it calm
//
//   - Nothing is balanced while both nodes use less than Policy.Gate of the resource, while both
//     are saturated, or within one slow window of a change of epoch, a resync, a roll, a scrub or a
//     cut.
//   - A LUN that was moved rests. The rest doubles with each relapse: a move back, or one that did
//     not bring what it promised. It covers every reason except the pin, a drained owner, and the
//     loss of the owner for all hosts.
//   - No LUN moves more often than MovesPerHour, whatever connectivity does: a command that arrives
//     at the other node is forwarded, so that a LUN that stays costs time and no errors. Only a pin
//     and a drained owner are exempt.
//   - A new chair starts every delay again, because it knows nothing of what the former one saw.
package balance
