// Package sums keeps a checksum of every block of a LUN, in a file of its own beside the images, so
// that a block that is not what was written is known for what it is.
//
// A File holds one checksum of 4 bytes for each block of 4 KiB: 1 MiB for each GiB of the LUN, plus
// one part in 63. All files of a node share one Cache, whose budget bounds the memory.
//
// # What the caller owes
//
//   - Put comes after the write of the block, Check after its read, and no two of them for one
//     block at the same time: the caller holds a lock of the range, or asks again under one when
//     Check finds a fault.
//   - What Put, Zero and SetBad change is in memory until Flush has returned. A block whose
//     write-intent bit is set may therefore have an older checksum on disk than its data after a
//     crash, or a younger one; the caller flushes before it clears the bit, and believes no
//     checksum of a region whose bit was set when the node started.
//   - After an error other than ErrRange and a lack of space the file is not what it should be, and
//     the store is not trusted any more: File.Failed says so, and Hooks.Failed is called. A lack of
//     space leaves what has changed in memory, for the next Flush. What cannot be read is no error:
//     it is Unknown, and stays so until it is put again.
//
// # What the caller may rely on
//
//   - A checksum that is read back is one that was put there, for that block of that LUN, or it is
//     Unknown: every 512 bytes of the file check themselves. Such a sector is old or new after a
//     power loss, whatever became of its neighbours, so that a flush that was cut short changes no
//     checksum of a block that it was not about. (Sectors are what disks write as a whole.)
//   - A sector that was never written says that its blocks are zero, which is what a new LUN is:
//     making one writes nothing, and a write of the disk that was lost is found.
package sums
