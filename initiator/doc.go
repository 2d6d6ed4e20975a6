// Package initiator is a userspace iSCSI initiator (RFC 7143) with ALUA multipathing (SPC-4 §5.15).
//
// It has two layers. A Session is one TCP connection to one portal: login, full feature phase, task
// management, logout. A Device is one logical unit reached through all its portals: it routes I/O
// to the path the target calls optimized, follows unit attentions, retries across paths and queues
// while no path serves. With several sessions to each portal (Config.Sessions) it spreads the load
// over all sessions to the portal that serves.
//
// # What a caller may rely on
//
//   - A write that returned nil was acknowledged with GOOD by the target. A write that returned an
//     error may have taken effect, in whole or in part, or not.
//   - Retries across paths are at-least-once: a command whose connection was lost before its status
//     arrived is sent again on another path, so it may take effect twice before it returns. It
//     cannot take effect after it returned: Gemel's target does not start a host's command on a new
//     path before what that host left behind on the old path has ended or will never start (its
//     path-switch barrier). Against targets without such a barrier the usual caveat of multipath
//     I/O applies.
//   - That includes another session to the same node. A session that the device ends, other than by
//     a logout, is reset before its commands are sent again: what its socket still held never
//     reaches the target. What the target had received by then is for the target to order.
//   - A request waits up to Config.Deadline for a path that serves. It fails sooner, with
//     ErrNoUnit, while the target says that there is no such LUN and has said so for
//     Config.NoUnitAfter: the host was fenced. nounit.go tells who is believed.
//   - Flush covers every write that had returned before Flush was called.
//   - Requests in flight at the same time are not ordered against each other, overlapping ones
//     neither, exactly as with a block device.
//   - Buffers belong to the package from submission until the request completes; it neither reads
//     nor writes them afterwards, not even when a connection was cut meanwhile.
//
// # Threads
//
// A Session has three goroutines: reader, writer (only for what a non-blocking write left over) and
// keepalive. Callbacks run on the reader, so they must not block; commands submitted from a
// callback are gathered and sent with one writev when the reader has taken in everything the socket
// held. In steady state a command allocates nothing.
package initiator
