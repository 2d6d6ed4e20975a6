// Package extents keeps the map that says in which backing volume of a node each extent of a LUN
// lies. A LUN has a sparse image of the same name in every volume of its pool, and extent e lies at
// its own offset in exactly one of them.
//
// A rule that is fixed when the LUN is made places every extent: extent e lies in the volume
// rule[e % len(rule)]. The map holds what differs from the rule. So an extent that was never
// written has a place, and the first write to it needs no write of the map.
//
// A place is durable before it can be read (Set), and reading one takes no lock (At). Callers keep
// everything else away from an extent whose place they change.
//
// # The file
//
// A file is blocks of 4096 bytes in pairs. Of the two blocks of a pair the one with the higher
// generation counts; a change writes the other one. A write that a crash tears leaves a block that
// does not decode, and the one before counts. Pair 0 has the number of extents, in 8 bytes, and the
// rule; pair n+1 has the places of extents from n*PairExtents on, a byte each: 0 where the rule
// says, else the number of a volume.
//
// A block, little-endian:
//
//	 0  8  magic "GMLEXTNT"
//	 8  2  format, 1
//	10  2  bytes that count of what follows the header
//	12  4  Size
//	16  4  number of the pair
//	20  4  zero
//	24  8  generation, from 1 on
//	32 16  uuid of the LUN
//	48 12  the first 12 bytes of the id of the store
//	60  4  CRC32C of the block without this field
//	64     what follows
//
// Where neither block of a pair decodes, the file is ErrDamaged: where the extents lie is not
// known, and the LUN needs a copy of all of it. If one block of a pair was damaged later, and it
// was the newer one, the older one counts, as after a torn write: extents that moved since are
// looked for where they lay before. They were freed there, so that their checksums do not match.
package extents
