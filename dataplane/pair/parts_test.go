package pair

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// exporting is a lone member that is asked for its metadata, which a joiner waits for.
func exporting(t *testing.T) *rig {
	t.Helper()
	r := alone(t, A)
	r.linkUp()
	r.sync(r.peerInfo(Outside))
	r.next(ActExport)
	return r
}

// outside is a joiner that has met the lone member.
func outside(t *testing.T) *rig {
	t.Helper()
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty = 6, false
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.phase(Outside)
	r.linkUp()
	r.sync(r.peerInfo(Alone))
	r.queue = nil
	return r
}

func large(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// The joiner has the very bytes, whatever their number; the source sends no more than a few parts
// that it has no answer to.
func TestMetadataComeInParts(t *testing.T) {
	for _, n := range []int{metaPart + 1, 3 * metaPart, 40<<20 + 17, MaxMetadata} {
		src, dst := exporting(t), outside(t)
		raw, sum := large(n), []byte("a checksum")
		src.m.SendMeta(src.now, 9, raw, sum, src.objects())
		var at int64
		for under := 0; ; {
			for msg := src.sentMaybe(MsgMetaPart); msg != nil; msg = src.sentMaybe(MsgMetaPart) {
				if under++; under > metaWindow || len(msg.Meta) > metaPart || msg.Off != at {
					t.Fatalf("%d bytes: part of %d bytes at %d, %d have come, %d parts without an answer", n, len(msg.Meta), msg.Off, at, under)
				}
				at += int64(len(msg.Meta))
				dst.recv(msg)
			}
			dst.none(ActInstall)
			last := src.sentMaybe(MsgMetaInstall)
			if last != nil {
				dst.recv(last)
				break
			}
			for ack := dst.sentMaybe(MsgMetaAck); ack != nil; ack = dst.sentMaybe(MsgMetaAck) {
				under--
				src.recv(ack)
			}
		}
		x := dst.next(ActInstall)
		if !bytes.Equal(x.Msg.Meta, raw) || !bytes.Equal(x.Msg.Sum, sum) || x.Msg.Aux != 9 {
			t.Fatalf("%d bytes came as %d, checksum %q, index %d", n, len(x.Msg.Meta), x.Msg.Sum, x.Msg.Aux)
		}
		for ack := dst.sentMaybe(MsgMetaAck); ack != nil; ack = dst.sentMaybe(MsgMetaAck) {
			src.recv(ack)
		}
		src.notSent(MsgMetaInstall)
		dst.m.Installed(dst.now, dst.m.link.number, 9, nil, nil, scsi.OK)
		src.recv(dst.sent(MsgMetaAck))
		if src.m.resync.stage == rsInstall || src.m.resync.send != nil || dst.m.resync.gather != nil {
			t.Errorf("%d bytes: stage %d, the source or the joiner keeps them", n, src.m.resync.stage)
		}
	}
}

// What fits into a part goes as it always did.
func TestSmallMetadataAreOneFrame(t *testing.T) {
	r := exporting(t)
	r.m.SendMeta(r.now, 9, large(metaPart), []byte("sum"), r.objects())
	if m := r.sent(MsgMetaInstall); m.Flags != 0 || len(m.Meta) != metaPart {
		t.Errorf("flags %x, %d bytes", m.Flags, len(m.Meta))
	}
	r.notSent(MsgMetaPart)
}

// A peer that knows no parts gets one frame, or nothing and a reason that says what to do.
func TestMetadataForAnEarlierRelease(t *testing.T) {
	r := exporting(t)
	r.m.SendMeta(r.now, 9, large(MaxFrameMeta), nil, r.objects())
	if m := r.sent(MsgMetaInstall); len(m.Meta) != MaxFrameMeta {
		t.Errorf("%d bytes", len(m.Meta))
	}
	for _, x := range []struct {
		n    int
		sum  []byte
		want string
	}{{MaxFrameMeta + 1, nil, "upgrade node b"}, {MaxMetadata + 1, []byte("sum"), "delete LUNs"}} {
		r := exporting(t)
		r.m.SendMeta(r.now, 9, make([]byte, x.n), x.sum, r.objects())
		if m := r.sentMaybe(MsgMetaInstall); m != nil {
			t.Fatalf("%d bytes are sent to a peer that takes fewer", len(m.Meta))
		}
		r.notSent(MsgMetaPart)
		r.reason(x.want)
		if !strings.Contains(strings.Join(r.texts, "\n"), x.want) {
			t.Errorf("no event: %q", r.texts)
		}
		if r.m.phase != Alone || !r.m.Serving(r.now) {
			t.Error("the lone member does not serve")
		}
		r.pass(5 * lease)
		r.looks()
		r.none(ActExport)
		in := r.peerInfo(Outside) // of another release
		in.Incarnation.Nonce = 99
		r.linkUp()
		r.sync(in)
		r.pass(2 * lease)
		r.next(ActExport)
		r.m.SendMeta(r.now, 9, []byte("{}"), []byte("sum"), r.objects())
		r.sent(MsgMetaInstall)
		if r.m.reason != "" {
			t.Errorf("the reason stays: %s", r.m.reason)
		}
	}
}

// Parts that do not follow each other, or that are not all there, are never installed.
func TestPartsThatDoNotFit(t *testing.T) {
	part := func(off, total, index int64, n int) *Msg {
		return &Msg{Type: MsgMetaPart, Off: off, Len: total, Aux: index, Meta: make([]byte, n)}
	}
	whole := func(total, index int64, sum string) *Msg {
		return &Msg{Type: MsgMetaInstall, Flags: FlagParts, Len: total, Aux: index, Meta: []byte(sum)}
	}
	for name, msgs := range map[string][]*Msg{
		"a gap":                      {part(0, 30, 1, 10), part(20, 30, 1, 10)},
		"the middle first":           {part(10, 30, 1, 10)},
		"another index":              {part(0, 30, 1, 10), part(10, 30, 2, 10)},
		"another length":             {part(0, 30, 1, 10), part(10, 40, 1, 10)},
		"more than was said":         {part(0, 30, 1, 10), part(10, 30, 1, 21)},
		"nothing":                    {part(0, 30, 1, 0)},
		"too much":                   {part(0, MaxMetadata+1, 1, 10)},
		"no length":                  {part(0, 0, 1, 10)},
		"the end is missing":         {part(0, 30, 1, 10), whole(30, 1, "sum")},
		"the whole has another size": {part(0, 30, 1, 30), whole(31, 1, "sum")},
		"the whole is another":       {part(0, 30, 1, 30), whole(30, 2, "sum")},
		"no checksum":                {part(0, 30, 1, 30), whole(30, 1, "")},
		"no parts":                   {whole(30, 1, "sum")},
	} {
		r := outside(t)
		for _, m := range msgs {
			r.recv(m)
		}
		r.none(ActInstall)
		var last *Msg
		for m := r.sentMaybe(MsgMetaAck); m != nil; m = r.sentMaybe(MsgMetaAck) {
			last = m
		}
		if last == nil || last.Result != scsi.Failed || last.Flags != 0 || r.m.resync.gather != nil {
			t.Errorf("%s: the source is answered %+v", name, last)
		}
	}
}

// A link that is cut in the midst of the parts: nothing of them is left, and the next attempt is
// whole.
func TestPartsAndALinkThatIsCut(t *testing.T) {
	r := outside(t)
	raw := large(3 * metaPart)
	send := func(from, to int) {
		for i := from; i < to; i++ {
			r.recv(&Msg{Type: MsgMetaPart, Off: int64(i) * metaPart, Len: int64(len(raw)), Aux: 4, Meta: raw[i*metaPart : (i+1)*metaPart]})
		}
	}
	end := &Msg{Type: MsgMetaInstall, Flags: FlagParts, Len: int64(len(raw)), Aux: 4, Meta: []byte("sum")}
	send(0, 2)
	r.m.LinkDown(r.now, r.m.link.number, true)
	if r.m.resync.gather != nil {
		t.Error("the joiner keeps what it will not need")
	}
	r.linkUp()
	r.sync(r.peerInfo(Alone))
	r.queue = nil
	send(2, 3)
	r.none(ActInstall)
	send(0, 3)
	r.recv(end)
	if x := r.next(ActInstall); !bytes.Equal(x.Msg.Meta, raw) {
		t.Error("other bytes")
	}

	src := exporting(t)
	src.m.SendMeta(src.now, 9, raw, []byte("sum"), src.objects())
	src.m.LinkDown(src.now, src.m.link.number, true)
	if src.m.resync.send != nil {
		t.Error("the source keeps what it will not send")
	}
	src.m.resync.stage = rsInstall // a stray answer
	src.linkUp()
	src.recv(&Msg{Type: MsgMetaAck, Flags: FlagParts, Aux: 9, Off: metaPart})
}
