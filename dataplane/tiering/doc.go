// Package tiering decides which extents of LUNs lie on the fast backing volumes of a pool, and
// which ones on its large ones. It is pure: no clock, disk, goroutine or randomness. A node asks it
// once a round with what it has counted (View); the answer is a short list of moves with reasons.
// Each node decides for itself: where an extent lies is no business of its partner.
//
// # Order of reasons
//
//  1. Pin: a LUN is pinned to a tier.
//  2. Reserve: a little of Fast stays free, for writes to extents whose volume is full.
//  3. Heat: what is used most lies on Fast.
//
// # What keeps it calm
//
//   - An extent that is used now and then is counted by chance more often than another one. So an
//     extent takes the place of another only if it is used at least Gain times as often, as far as
//     the counts can tell both rates: a set that is evenly warm and larger than Fast stays where it
//     is.
//   - A move costs time of both devices, and so does the way back. What is not used often enough to
//     earn that within Horizon is not moved.
//   - What was moved has to earn it indeed. Where most of it cools down before, an extent has to be
//     hot for longer before it is moved, up to Horizon (Policy.Wait).
//   - What is read in sequence does not heat an extent (Counters): a large disk reads a sequence
//     about as fast as a fast one, and a scan does not come back.
package tiering
