// Package clock is the one clock that ages, leases and pauses are measured with.
package clock

import "golang.org/x/sys/unix"

// Boottime is CLOCK_BOOTTIME in ns: it goes on while the machine is suspended, as leases must and as hosts do (R3, R11b).
func Boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // only for a clock that the kernel does not know; Linux has had this one since 2.6.39
	}
	return ts.Nano()
}
