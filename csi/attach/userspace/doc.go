// Package userspace attaches LUNs without the kernel's iSCSI initiator: for each attachment, a
// holder process logs in at all portals (package initiator) and provides the LUN as the only file
// of a FUSE filesystem; a loop device in direct I/O mode makes that file a block device.
//
// The holder outlives the process that started it. What survives is recorded before it is created:
//
//	<dir>/<volume>/record.json  the attachment, before anything else exists
//	<dir>/<volume>/lock         locked (flock) while a holder runs, from before its first instruction
//	<dir>/<volume>/holder.json  the holder's PID and start time, which it writes first
//	<dir>/<volume>/ctl.sock     control socket of the holder
//	<dir>/<volume>/mnt/         the FUSE mount
//	<dir>/<volume>/holder.log   its log
//
// Everything else is observed each time: mounts from mountinfo, loop devices by the inode that they
// are bound to (a random number in the record), the holder by its lock. A detach plans from record
// and observation, so that it works after a crash at any point.
//
// Credentials are in the holder's memory and in no file. The holder uses them for every login; it
// gets other ones over its control socket.
//
// The holder has no file descriptor on its own mount or on the loop device. Otherwise a killed
// holder could wait forever, unkillable, for a flush that only it could serve. This is also why the
// loop device does not have autoclear from the start: no process has it open between mkfs and
// mount. Detach sets it with LOOP_CLR_FD.
package userspace
