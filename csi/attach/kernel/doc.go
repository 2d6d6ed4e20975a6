// Package kernel attaches LUNs with the worker's own tools: open-iscsi for the sessions, the
// kernel's SCSI layer for the paths, dm-multipath with its ALUA handler for the device. Nothing of
// this process is in the path of I/O.
//
// One pure function (plan) compares what is wanted with what is there and says what to do next;
// attach, detach and resize differ only in the goal. What is there comes from a host, whose real
// one reads sysfs and runs the worker's own iscsiadm, multipath, multipathd and dmsetup in the
// worker's namespaces; nothing that can be observed is remembered. The only thing remembered is a
// record per volume,
//
//	<dir>/<volume>.json   the attachment, written before anything else is done, removed last
//
// so that a detach works from any point at which a crash may have left things. A record also says
// who else uses a target: its sessions are shared, and end with the last of them.
//
// The device that is handed out is /dev/dm-N. The number is looked up again each time by the map's
// UUID, which is made of the LUN's WWID: names of maps are the administrator's choice, those of sd
// devices and the by-path links depend on who was faster.
package kernel
