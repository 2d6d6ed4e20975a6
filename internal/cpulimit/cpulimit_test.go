package cpulimit

import (
	"math"
	"runtime"
	"testing"
	"testing/fstest"
	"time"
)

func TestLowestLimitOfTheCgroupsCounts(t *testing.T) {
	all := float64(runtime.GOMAXPROCS(0))
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, x := range map[string]struct {
		files fstest.MapFS
		want  float64
	}{
		"no cgroups":             {fstest.MapFS{}, all},
		"a container":            {fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/cpu.max": file("50000 100000\n")}, 0.5},
		"version 1":              {fstest.MapFS{"proc/self/cgroup": file("3:cpu:/x\n"), "sys/fs/cgroup/cpu.max": file("50000 100000\n")}, all},
		"no limit":               {fstest.MapFS{"proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/cpu.max": file("max 100000\n")}, all},
		"a limit above":          {fstest.MapFS{"proc/self/cgroup": file("1:x:/\n0::/a/b\n"), "sys/fs/cgroup/a/b/cpu.max": file("max 100000\n"), "sys/fs/cgroup/a/cpu.max": file("25000 100000\n")}, 0.25},
		"the lower one of two":   {fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/cpu.max": file("20000 100000\n"), "sys/fs/cgroup/a/cpu.max": file("90000 100000\n")}, 0.2},
		"text that is no limit":  {fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/cpu.max": file("fast\n")}, all},
		"more than Go would use": {fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/cpu.max": file("99900000 100000\n")}, all},
	} {
		if got := CPUs(x.files); math.Abs(got-x.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}

func TestUsedGrows(t *testing.T) {
	before := Used()
	for begun := time.Now(); time.Since(begun) < 10*time.Second && Used() == before; {
	}
	if Used() <= before {
		t.Error("CPU time does not grow")
	}
}
