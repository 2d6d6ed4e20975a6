package userspace

import (
	"errors"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

func TestTeardownPlans(t *testing.T) {
	idle := loop{path: "/dev/loop3"}
	used := loop{path: "/dev/loop3", users: []string{"/mnt/x"}}
	for _, c := range []struct {
		name  string
		o     observed
		force bool
		want  []verb
		busy  bool
	}{
		{"all there", observed{true, true, true, []loop{idle}}, false, []verb{doFlush, doClear, doUmount, doStop, doForget}, false},
		{"still mounted", observed{true, true, true, []loop{used}}, false, nil, true},
		{"holder dead", observed{true, false, true, []loop{idle}}, false, []verb{doClear, doUmount, doForget}, false},
		{"holder dead, still mounted", observed{true, false, true, []loop{used}}, false, nil, true},
		{"holder dead, forced", observed{true, false, true, []loop{used}}, true, []verb{doUmountDev, doClear, doUmount, doForget}, false},
		{"old generation", observed{true, true, true, []loop{used}}, true, []verb{doKill, doUmountDev, doClear, doUmount, doForget}, false},
		{"crash before the loop device", observed{true, true, true, nil}, false, []verb{doUmount, doStop, doForget}, false},
		{"crash while the holder logs in", observed{true, true, false, nil}, false, []verb{doStop, doForget}, false},
		{"crash after the record", observed{true, false, false, nil}, false, []verb{doForget}, false},
		{"two loop devices", observed{true, true, true, []loop{idle, idle}}, false, []verb{doFlush, doClear, doFlush, doClear, doUmount, doStop, doForget}, false},
		{"lost mount", observed{true, true, false, []loop{idle}}, false, []verb{doFlush, doClear, doStop, doForget}, false},
		{"after a reboot the device of another process is not touched", observed{false, true, true, []loop{used}}, false, []verb{doForget}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, err := plan(c.o, c.force)
			if c.busy != errors.Is(err, attach.ErrBusy) {
				t.Fatalf("error %v", err)
			}
			var got []verb
			for _, s := range steps {
				got = append(got, s.do)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %q\nwant %q", got, c.want)
			}
		})
	}
}

// In any state, the plan removes the record last, and without force it never touches the loop
// device after its holder was stopped.
func TestTeardownRemovesTheRecordLast(t *testing.T) {
	for bits := range 32 {
		o := observed{sameBoot: true, alive: bits&1 > 0, mounted: bits&2 > 0}
		if bits&4 > 0 {
			o.loops = []loop{{path: "/dev/loop9"}}
		}
		if bits&8 > 0 && len(o.loops) > 0 {
			o.loops[0].users = []string{"/u"}
		}
		force := bits&16 > 0
		steps, err := plan(o, force)
		if err != nil {
			if force {
				t.Errorf("%+v: forced, but %v", o, err)
			}
			continue
		}
		at := map[verb]int{}
		for i, s := range steps {
			at[s.do] = i + 1
		}
		if at[doForget] != len(steps) {
			t.Errorf("%+v: removes the record at %d of %d", o, at[doForget], len(steps))
		}
		if o.mounted && at[doClear] > at[doUmount] || at[doStop] > 0 && at[doClear] > at[doStop] || at[doFlush] > at[doClear] {
			t.Errorf("%+v force %v: order %v", o, force, steps)
		}
		if force && o.alive && at[doKill] != 1 {
			t.Errorf("%+v: an old generation may still write: %v", o, steps)
		}
	}
}
