// Package pair is the protocol of a dual-node target: membership, lease, epochs, mirrored writes,
// forwarding, the metadata log, resync, ownership and healing, as one state machine without clock,
// socket, disk or goroutine. docs/pair.md states the rules R1 to R15 that the comments name. The
// same code runs in production (dataplane/node), in the simulator (dataplane/sim) and in this
// package's tests: the three differ in what they do with the actions.
//
// # The order of calls
//
// Inputs are method calls that carry the time; outputs are Actions. A caller begins like this:
//
//	m := pair.New(cfg)               // what the store knows: incarnation, epoch, record, log index, state
//	m.SetUnits(now, units)           // what the applied metadata says of LUNs
//	m.LoadIntents(lun, hot)          // the write-intent bits of each LUN, as they are on disk
//	m.Start(now)                     // asks for the record
//
// and then repeats, under one mutex:
//
//	m.Tick(now)                      // at least every Heartbeat/2
//	m.Receive(now, link, msg)        // a frame of the peer; LinkUp and LinkDown around them
//	m.Submit(now, op)                // a command of a host
//	m.StoreDone(now, op, result)     // the end of an action; each ActionKind names its call
//	actions = m.Take(actions)        // after every call: what is to be done now
//
// # What the caller owes
//
//   - One call at a time, and a time that never goes back: CLOCK_BOOTTIME in nanoseconds, read
//     after the mutex was taken.
//   - ActSend and ActClear are begun before the mutex is given back, in their order; the other
//     actions of one Take after that, in theirs. They may end in any order. Each ends by exactly
//     one call, also after the machine has left (Outside or Fenced); an action that can fail ends
//     with a Result that says so. Nothing is retried by the caller.
//   - ActReply was decided at the time that the call carried (R1, R3). What happens between that
//     and the host is a late frame, which R11 covers: so the time has to be read under the mutex,
//     and not before.
//   - ActSend keeps its order within a link. A message may be lost with its link, never within it;
//     Receive is called with the number of the link that a message came over, so that an old one is
//     known.
//   - ActSaveEpoch, ActSaveState and ActAppend are durable before they end, and nothing of the entry
//     of ActAppend is seen before ActShow; an entry that takes part in copies, or removes or grows a
//     file, may be left for ActShow as a whole. ActIntend is durable before the write that it
//     precedes, and ActClear takes effect before any later ActIntend. ActStore with Durable, ActFlush, ActPeerFlush and ActFlushAll are durable, and cover the
//     checksums where the comment says so.
//   - ActApply of two messages that overlap is never given at once: the machine orders them.
//     ActCopyRead, ActHeal, ActAccept and ActFetch are given while the machine holds the range. The
//     store does not order anything.
//   - StoreBegins precedes a read that waits for the disk, so that a long queue is not taken for a
//     disk that hangs.
//   - What an action refers to (an Op, its buffers, a Msg) belongs to the runtime until the action
//     has ended, and to the machine otherwise. ActReply gives an Op back; Op.Reset makes it ready
//     for another command.
//   - A store that has failed is reported at once (StoreFailed), whatever call met it (R12).
//
// # What the caller may rely on
//
//   - Every Op that was submitted ends in one ActReply while calls are made, and at the latest when
//     the machine leaves. No Op waits for an entry of the log that waits for an Op.
//   - The machine never blocks, and calls nothing of the caller's.
//   - The same calls lead to the same actions: no map order, no randomness and no clock is in it.
//     That is what makes a history of the simulator repeatable from its seed.
//   - At no moment are two nodes Serving, whatever is lost, late, repeated, killed or cut off, if
//     the arbiter is a linearizable record and clocks drift by no more than Config.Margin allows.
//
// # Where to read
//
// write.go is a host's command from Submit to its status, in the order in which it happens;
// partner.go is the other node's half of a write. intent.go has the write-intent bits, late.go what
// late commands may do (R11), forward.go the way to the owner, flush.go and repair.go what their
// names say, storefail.go a store that has failed, slow.go one that is slow. membership.go and
// outside.go are the record, link.go the lease, resync.go and copy.go readmission, heal.go
// checksums, scrub.go comparisons, log.go the metadata log, quiesce.go transfers and snapshots,
// checkpoint.go the return of bits.
package pair
