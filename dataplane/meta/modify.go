package meta

import (
	"cmp"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// ModeState is a LUN's mode page state; a LUN without one is as units are made.
func (l *LUN) ModeState() scsi.ModeState {
	if l.Mode != nil {
		return *l.Mode
	}
	return scsi.DefaultMode(true)
}

// WriteThrough reports whether every write to the LUN is durable on every member before its
// status, whatever hosts set.
func (l *LUN) WriteThrough() bool { return l.Mode != nil && l.Mode.WriteThrough }

// SetWriteThrough sets the write cache mode of a LUN that no host sees yet.
func (l *LUN) SetWriteThrough(on bool) {
	if m := l.ModeState(); m.WriteThrough != on {
		m = m.SetWriteThrough(on)
		l.Mode = &m
	}
}

// NoGroup is the group of a LUN that belongs to none, as it is asked for.
const NoGroup = "none"

// MaxGroup is the longest name of a group: a namespace and a name of Kubernetes, in bytes.
const MaxGroup = 63 + 1 + 253

// NoQuarantine ends the quarantine of a LUN.
const NoQuarantine = "none"

// MaxQuarantine is the longest reason of a quarantine, in bytes.
const MaxQuarantine = 1024

// GroupName is the group of a LUN in words.
func GroupName(group string) string { return cmp.Or(group, NoGroup) }

// modify changes write cache mode, preferred node, pins, group and quarantine. A LUN that is where
// it is pinned belongs there; another preferred node is refused, since the pin would hold it off
// for ever.
// Asking for what already is changes nothing, and in particular does not take back what a host has
// set by MODE SELECT since.
func (s *State) modify(e *Modify) (out Outcome, fx Effect) {
	l := s.LUNs[e.UUID]
	switch {
	case l == nil:
		return failed("not_found", "LUN %s does not exist", e.UUID), fx
	case l.Stage != Ready:
		return failed("not_ready", "LUN %s is still being created", e.UUID), fx
	case e.Preferred != "" && badNode(e.Preferred):
		return failed("invalid", "LUN %s cannot prefer node %q", e.UUID, e.Preferred), fx
	case e.Pin != "" && e.Pin != NoPin && badNode(e.Pin):
		return failed("invalid", "LUN %s cannot be pinned to node %q", e.UUID, e.Pin), fx
	case e.Tier != "" && e.Tier != NoPin && badTier(e.Tier):
		return failed("invalid", "LUN %s cannot be pinned to tier %q", e.UUID, e.Tier), fx
	case len(e.Group) > MaxGroup:
		return failed("invalid", "spread_group: the name of %d bytes is longer than %d", len(e.Group), MaxGroup), fx
	case len(e.Quarantine) > MaxQuarantine:
		return failed("invalid", "quarantine: the reason of %d bytes is longer than %d", len(e.Quarantine), MaxQuarantine), fx
	}
	group := l.Group
	switch e.Group {
	case "":
	case NoGroup:
		group = ""
	default:
		group = e.Group
	}
	pin := l.Pin
	if e.Pin != "" {
		pin = PinOf(e.Pin)
	}
	if pin != "" && e.Preferred != "" && e.Preferred != pin {
		return failed("invalid", "preferred_node: LUN %s is pinned to node %s and cannot prefer node %s: set pinned_node to %s first", e.UUID, pin, e.Preferred, NoPin), fx
	}
	tier := l.Tier
	if e.Tier != "" {
		tier = PinOf(e.Tier)
	}
	home := cmp.Or(e.Preferred, l.Preferred)
	if pin != "" && pin == l.Owner {
		home = pin
	}
	mode := e.WriteThrough != nil && *e.WriteThrough != l.WriteThrough()
	node := home != l.Preferred
	quarantine := l.Quarantine
	switch e.Quarantine {
	case "":
	case NoQuarantine:
		quarantine = ""
	default:
		quarantine = cmp.Or(quarantine, e.Quarantine) // the first reason is the one to look into
	}
	if !mode && !node && pin == l.Pin && tier == l.Tier && group == l.Group && quarantine == l.Quarantine {
		return Outcome{Noop: true}, fx
	}
	n := s.touch(e.UUID, &fx)
	if mode {
		before := n.ModeState().Current
		n.SetWriteThrough(*e.WriteThrough)
		if n.Mode.Current != before {
			fx.ModeLUN = e.UUID
		}
	}
	n.Pin, n.Tier, n.Group, n.Quarantine = pin, tier, group, quarantine
	if node {
		n.Preferred, fx.PreferredLUNs = home, []string{e.UUID}
	}
	return out, fx
}

func (s *State) applyMode(e *Mode) (out Outcome, fx Effect) {
	l := s.LUNs[e.UUID]
	if l == nil {
		return failed("not_found", "LUN %s does not exist", e.UUID), fx
	}
	cur := l.ModeState()
	next, res, changed := scsi.ApplyModeSelect(cur, &e.Req)
	if next != cur { // also when only what is saved differs: hosts see that after a reset
		s.touch(e.UUID, &fx).Mode = &next
	}
	if changed {
		fx.ModeLUN, fx.By = e.UUID, e.Nexus
	}
	return Outcome{SCSI: &res}, fx
}
