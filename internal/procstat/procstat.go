// Package procstat reads /proc/PID/stat (proc(5)).
package procstat

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of its times: USER_HZ is 100 on every Linux that Go supports.
const Tick = time.Second / 100

// Stat is what is used of it.
type Stat struct {
	Name         string
	State        string // R, S, D, Z, …
	User, System uint64 // Ticks on a processor, threads included: fields 14 and 15
	Start        uint64 // Ticks after the machine's start: field 22
}

// Read is that of a process; fs.ErrNotExist or ESRCH when there is none.
func Read(pid int) (Stat, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return Parse(string(raw))
}

// Parse reads such a line. Its second field, the name in parentheses, may hold blanks and parentheses.
func Parse(line string) (s Stat, err error) {
	i, j := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if i < 0 || j < i {
		return s, fmt.Errorf("/proc stat %q has no name", line)
	}
	f := strings.Fields(line[j+1:])
	if len(f) < 20 {
		return s, fmt.Errorf("/proc stat has %d fields after the name, want 20 or more", len(f))
	}
	s.Name, s.State = line[i+1:j], f[0]
	for n, to := range map[int]*uint64{11: &s.User, 12: &s.System, 19: &s.Start} {
		if *to, err = strconv.ParseUint(f[n], 10, 64); err != nil {
			return s, fmt.Errorf("/proc stat, field %d: %w", n+3, err)
		}
	}
	return s, nil
}
