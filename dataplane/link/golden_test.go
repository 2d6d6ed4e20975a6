package link

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A frame of version 1, as every release that speaks version 1 must write and read it. If this test
// fails the format has changed: give it a new version, and keep the old one readable.
const golden1 = `
474c 01 09 02 01 05 00           magic, version, type, kind, flags, result, zero
0000000000000001                 epoch
0000000000000002                 owner sequence
0000000000000003                 id
04050000000000000000000000000000 LUN
0000000000000006                 offset
0000000000000007                 length
0000000000000008                 front-end incarnation
0000000000000009                 front-end sequence
fffffffffffffff6                 aux
00000004                         bytes of meta
00000004                         bytes of data
30634603                        CRC32C of meta and data
0000000000000000                 zero
fd8d217c                        CRC32C of the header before it
6d657461                         meta
64617461                         data
`

func golden(t *testing.T, text string) []byte {
	t.Helper()
	var b []byte
	for line := range strings.Lines(strings.TrimSpace(text)) {
		for _, w := range strings.Fields(line) {
			x, err := hex.DecodeString(w)
			if err != nil {
				break // the words that say what it is
			}
			b = append(b, x...)
		}
	}
	return b
}

func TestGoldenFrame(t *testing.T) {
	want := golden(t, golden1)
	got := frame(full())
	if !bytes.Equal(got, want) {
		t.Fatalf("the frame format has changed:\n%x\n%x", got, want)
	}
	if m, err := read(want); err != nil || !reflect.DeepEqual(m, full()) {
		t.Fatalf("%+v %v", m, err)
	}
}

// The numbers of the messages are as much a part of the format. New messages come at the end,
// behind a feature or a version.
func TestGoldenMessageNumbers(t *testing.T) {
	for i, ty := range []pair.MsgType{pair.MsgHeartbeat, pair.MsgHeartbeatAck, pair.MsgSync, pair.MsgStepDown, pair.MsgMirror, pair.MsgMirrorAck,
		pair.MsgFlush, pair.MsgFlushAck, pair.MsgForward, pair.MsgForwardResult, pair.MsgForwardAbort, pair.MsgPathSwitch, pair.MsgPathSwitchAck,
		pair.MsgPropose, pair.MsgProposeResult, pair.MsgAppend, pair.MsgAppendAck, pair.MsgRequest, pair.MsgReply, pair.MsgMetaInstall,
		pair.MsgMetaAck, pair.MsgCopySum, pair.MsgCopyNeed, pair.MsgCopyData, pair.MsgCopyAck, pair.MsgFlushAll, pair.MsgFlushAllAck} {
		if int(ty) != i+1 {
			t.Errorf("message %d of version 1 has number %d", i+1, ty)
		}
	}
}
