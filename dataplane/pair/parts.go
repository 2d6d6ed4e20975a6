package pair

import (
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The whole metadata of a pair on its way to a joiner. A frame of the link takes MaxFrameMeta bytes
// of it, and so does a peer of 0.1.0. A later one is sent parts in order, a few under way at a
// time, then a description of the whole: its length and a checksum, which the runtime compares
// before anything is installed. Whatever cuts the parts off, the next attempt begins with the
// first.

const (
	MaxFrameMeta = 16 << 20 // bytes of metadata in one frame: link.MaxMeta
	MaxMetadata  = 64 << 20 // bytes of the whole: what a joiner takes, and holds in memory until it is installed

	metaPart   = 1 << 20 // bytes of a part
	metaWindow = 4       // parts that the joiner has not answered
)

// metaSend is the source's side.
type metaSend struct {
	raw, sum []byte
	index    int64
	next     int64 // offset of the part to send next
}

// metaGather is the joiner's side.
type metaGather struct {
	raw   []byte // what has come; its capacity is the length of the whole
	index int64
}

// tooLarge tells why metadata of so many bytes cannot be given to the peer, "" if they can.
func (m *Machine) tooLarge(n int, parts bool) string {
	switch {
	case n > MaxMetadata:
		return fmt.Sprintf("the metadata of this pair is %d bytes, and a node can receive at most %d: delete LUNs, snapshots, labels or mappings that you do not need", n, MaxMetadata)
	case !parts && n > MaxFrameMeta:
		return fmt.Sprintf("the metadata of this pair is %d bytes, and the release of node %s can receive at most %d: upgrade node %s", n, m.cfg.Self.Peer(), MaxFrameMeta, m.cfg.Self.Peer())
	}
	return ""
}

// refusedAgain is when a resync that cannot begin is tried again, in ns, if the joiner does not
// come as another process before.
const refusedAgain = 60_000_000_000

// metaRefused ends a resync that cannot begin.
func (m *Machine) metaRefused(now int64, why string) {
	v := m.resync.view
	v.Active = false
	m.resync = resyncState{retryAt: now + refusedAgain, view: v}
	if m.reason != why {
		m.event("no resync: %s", why)
	}
	m.reason, m.refusal = why, why
}

// metaBegin sends the metadata, in parts if it is more than one and sum is set.
func (m *Machine) metaBegin(now int64, index uint64, meta, sum []byte) {
	if m.reason == m.refusal {
		m.reason = ""
	}
	m.refusal = ""
	if sum == nil || len(meta) <= metaPart {
		m.send(&Msg{Type: MsgMetaInstall, Aux: int64(index), Meta: meta})
		return
	}
	m.resync.send = &metaSend{raw: meta, sum: sum, index: int64(index)}
	for range metaWindow {
		m.metaNext(now)
	}
}

// metaNext sends the next part, and after the last part the length and checksum of the whole.
func (m *Machine) metaNext(now int64) {
	s := m.resync.send
	total := int64(len(s.raw))
	switch {
	case s.next < total:
		end := min(s.next+metaPart, total)
		m.send(&Msg{Type: MsgMetaPart, Aux: s.index, Off: s.next, Len: total, Meta: s.raw[s.next:end]})
		s.next = end
	case s.next == total:
		m.send(&Msg{Type: MsgMetaInstall, Flags: FlagParts, Aux: s.index, Len: total, Meta: s.sum})
		s.next++ // once
	}
}

// onMetaPart is the joiner's: a part that does not begin where the one before it ended ends the
// attempt.
func (m *Machine) onMetaPart(msg *Msg) {
	r := &m.resync
	if msg.Off == 0 {
		r.joined, r.install, r.gather = false, nil, nil
		if msg.Len > 0 && msg.Len <= MaxMetadata {
			r.gather = &metaGather{raw: make([]byte, 0, msg.Len), index: msg.Aux}
		}
	}
	g := r.gather
	have, room := int64(0), 0
	if g != nil {
		have, room = int64(len(g.raw)), cap(g.raw)-len(g.raw)
	}
	if g == nil || msg.Off != have || msg.Aux != g.index || msg.Len != int64(cap(g.raw)) || len(msg.Meta) == 0 || len(msg.Meta) > room {
		r.gather = nil
		m.event("a part of node %s's metadata does not follow the previous part: it is at offset %d of %d, and %d bytes were received", m.cfg.Self.Peer(), msg.Off, msg.Len, have)
		m.send(&Msg{Type: MsgMetaAck, Result: scsi.Failed})
		return
	}
	g.raw = append(g.raw, msg.Meta...)
	m.send(&Msg{Type: MsgMetaAck, Flags: FlagParts, Aux: g.index, Off: int64(len(g.raw))})
}

// metaWhole puts the parts together: they come to installation as one, with what they have to add
// up to.
func (m *Machine) metaWhole(msg *Msg) bool {
	r := &m.resync
	g := r.gather
	r.gather = nil
	if g == nil || msg.Aux != g.index || msg.Len != int64(cap(g.raw)) || len(g.raw) != cap(g.raw) || len(msg.Meta) == 0 {
		m.event("the metadata of node %s is not complete", m.cfg.Self.Peer())
		m.send(&Msg{Type: MsgMetaAck, Result: scsi.Failed})
		return false
	}
	msg.Sum, msg.Meta = msg.Meta, g.raw
	return true
}
