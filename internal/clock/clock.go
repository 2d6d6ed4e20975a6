// Package clock is the one clock that ages, leases and pauses are measured with.
package clock

import "golang.org/x/sys/unix"

// Boottime is CLOCK_BOOTTIME in ns, to within apart: it continues while the machine is suspended,
// as leases must and as hosts do (R3, R11b). It never goes back.
func Boottime() int64 { return machine.now() }

var machine = newSource(read, system)

// system asks the kernel for CLOCK_BOOTTIME, in ns.
func system() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // only for a clock that the kernel does not know; Linux has had this one since 2.6.39
	}
	return ts.Nano()
}

// wallTries bounds how often WallOffset reads, and wallWithin how exact it has to be (ns).
const (
	wallTries  = 5
	wallWithin = 1_000_000
)

// WallOffset is how far CLOCK_REALTIME is ahead of CLOCK_BOOTTIME, in ns, to within a millisecond;
// false if this thread was interrupted whenever it looked. Both run at one rate, whatever adjusts
// that: it changes only when a program sets the wall clock, which is also what happens after a
// virtual machine was frozen with its clocks.
func WallOffset() (ns int64, ok bool) {
	for range wallTries {
		before := system()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &ts); err != nil {
			panic(err)
		}
		if after := system(); after-before < wallWithin {
			return ts.Nano() - (before + (after-before)/2), true
		}
	}
	return 0, false
}
