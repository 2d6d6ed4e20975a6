// Package userspace attaches LUNs without the kernel's iSCSI initiator: a holder process of its own per attachment
// logs in over all portals (package initiator) and shows the LUN as the only file of a FUSE filesystem; a loop device in
// direct I/O mode makes a block device of that file.
//
// The holder outlives the process that started it. What survives is written down before it is done:
//
//	<dir>/<volume>/record.json  the attachment, before anything else exists
//	<dir>/<volume>/lock         locked (flock) as long as a holder lives, from before its first instruction on
//	<dir>/<volume>/holder.json  the holder's pid and start time, its first act
//	<dir>/<volume>/ctl.sock     control socket of the holder
//	<dir>/<volume>/mnt/         the FUSE mount
//	<dir>/<volume>/holder.log   its log
//
// Everything else is observed, never remembered: mounts from mountinfo, loop devices by the inode that they are bound
// to (a random number chosen for this attachment and kept in the record), the holder by its lock. A detach plans from
// record and observation, so that it works from any point at which a crash may have left things.
//
// Credentials are in the holder's memory and in no file. It logs in with them again whenever it has to; others it gets over its control socket.
//
// The holder has no file descriptor on its own mount or on the loop device. If it had, killing it could leave it waiting, unkillable,
// for a flush that only it could have served. That is also why the loop device does not have autoclear from the start:
// nobody would hold it open between mkfs and mount. Detach sets it by LOOP_CLR_FD.
package userspace
