package pair

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestNexusAndRangesTravel(t *testing.T) {
	in := scsi.NexusID{Initiator: "iqn.host", ISID: [6]byte{1, 2, 3, 4, 5, 6}, Port: 2}
	var out scsi.NexusID
	rest, err := new(names).decodeNexus(append(appendNexus(nil, in), "rest"...), &out)
	if err != nil || out != in || string(rest) != "rest" {
		t.Fatalf("%+v %q %v", out, rest, err)
	}
	rs := []scsi.Range{{Off: 0, Len: 512}, {Off: 1 << 40, Len: 1 << 30}}
	got, err := decodeRanges(encodeRanges(rs))
	if err != nil || !reflect.DeepEqual(got, rs) {
		t.Fatalf("%v %v", got, err)
	}
	for _, bad := range [][]byte{make([]byte, 15), bytes.Repeat([]byte{0xff}, 16), append([]byte{0x7f}, bytes.Repeat([]byte{0x7f}, 15)...)} {
		if rs, err := decodeRanges(bad); err == nil {
			t.Errorf("%x is taken for %v", bad, rs)
		}
	}
}

// FuzzReceive gives any message to a member, a lone member that copies, and a joiner. Whatever it
// says, the machine lives and asks for nothing that is not bounded.
func FuzzReceive(f *testing.F) {
	nexus := appendNexus(nil, scsi.NexusID{Initiator: testHost, Port: 1})
	for ty := MsgHeartbeat; ty < MsgTypeEnd; ty++ {
		f.Add(byte(ty), byte(scsi.OpWrite), byte(0), byte(0), uint64(3), int64(0), int64(512), int64(1), nexus, make([]byte, 512))
	}
	f.Add(byte(MsgForward), byte(scsi.OpRead), byte(0), byte(0), uint64(3), int64(0), int64(1)<<62, int64(1), nexus, []byte(nil))
	f.Add(byte(MsgMirror), byte(scsi.OpUnmap), byte(0), byte(0), uint64(3), int64(0), int64(0), int64(1), make([]byte, 17), []byte(nil))
	f.Fuzz(func(t *testing.T, ty, kind, flags, res byte, id uint64, off, length, aux int64, meta, data []byte) {
		if ty == 0 || MsgType(ty) >= MsgTypeEnd || off < 0 || length < 0 || off+length < 0 || len(data) > 1<<16 {
			return // the link refuses it
		}
		for _, r := range []*rig{paired(t, A), paired(t, B), joining(t), outsider(t)} {
			r.submit(r.op(scsi.OpWrite, 0, 512))
			r.m.Propose(r.now, []byte("entry"))
			for i := range uint64(2) {
				r.recv(&Msg{Type: MsgType(ty), Kind: scsi.OpKind(kind), Flags: flags, Result: scsi.Result(res), Seq: 1, ID: id + i, LUN: lun1,
					Off: off, Len: length, Front: r.m.fwd.from, FrontN: id, Aux: aux, Meta: meta, Data: data})
			}
			r.pass(20 * ms)
			for _, x := range r.queue {
				if x.Kind == ActStore && len(x.Op.Cmd.Data) > maxForward {
					t.Fatalf("an operation of %d bytes", len(x.Op.Cmd.Data))
				}
			}
			if _, err := json.Marshal(r.m.View(r.now)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// outsider is a joiner whose metadata is installed.
func outsider(t *testing.T) *rig {
	t.Helper()
	r := paired(t, B)
	r.m.get(r.now)
	r.got(record(6, A), "v6")
	r.saved()
	r.sync(r.peerInfo(Alone))
	r.recv(&Msg{Type: MsgMetaInstall, Aux: 3, Meta: []byte("all")})
	r.pass(20 * ms)
	r.next(ActInstall)
	r.m.Installed(r.now, r.m.link.number, 3, []UnitInfo{{ID: lun1, Owner: A, Seq: 1}}, nil, scsi.OK)
	return r
}
