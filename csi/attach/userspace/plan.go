package userspace

import (
	"fmt"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// observed is the actual state, whatever the record says.
type observed struct {
	sameBoot bool
	alive    bool // a holder runs
	mounted  bool // its FUSE filesystem is mounted
	loops    []loop
}

// healthy reports whether the attachment can serve.
func (o observed) healthy() bool {
	return o.sameBoot && o.alive && o.mounted && len(o.loops) == 1
}

// verb is one step of a teardown.
type verb string

const (
	doKill      verb = "kill the holder"
	doUmountDev verb = "unmount what is mounted from the device"
	doFlush     verb = "flush the device"
	doClear     verb = "release the loop device"
	doUmount    verb = "unmount the FUSE filesystem"
	doStop      verb = "wait for the holder's end"
	doForget    verb = "remove the record"
)

type step struct {
	do   verb
	loop loop // doUmountDev, doFlush, doClear
}

// plan returns the steps of a teardown: from the top of the stack downwards, each step possible
// whether or not the ones below still work. force is for an attachment whose LUN was fenced or
// whose holder has ended: its data is lost, so users of the device are disconnected. The holder is
// then killed first: no more data of an old generation may be sent.
func plan(o observed, force bool) ([]step, error) {
	if !o.sameBoot {
		return []step{{do: doForget}}, nil
	}
	var steps []step
	if force && o.alive {
		steps = append(steps, step{do: doKill})
	}
	for _, l := range o.loops {
		switch {
		case len(l.users) == 0:
		case !force:
			return nil, fmt.Errorf("%w: %s is used by %s", attach.ErrBusy, l.path, strings.Join(l.users, ", "))
		default:
			steps = append(steps, step{doUmountDev, l})
		}
	}
	for _, l := range o.loops {
		if o.alive && !force {
			steps = append(steps, step{doFlush, l})
		}
		steps = append(steps, step{doClear, l})
	}
	if o.mounted {
		steps = append(steps, step{do: doUmount})
	}
	if o.alive && !force {
		steps = append(steps, step{do: doStop})
	}
	return append(steps, step{do: doForget}), nil
}
