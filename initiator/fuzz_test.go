package initiator

import (
	"bytes"
	"context"
	"encoding/hex"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// socketPair gives two connected sockets of the operating system.
func socketPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if c[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return c[0], c[1]
}

// target builds PDUs of a target for seeds.
func targetPDU(op pdu.Opcode, set func(pdu.BHS), data []byte) []byte {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(op, false)
	h.SetFlags(pdu.Final)
	h.SetITT(pdu.Reserved)
	h.SetTTT(pdu.Reserved)
	h.PutU32(pdu.OffStatSN, 5)
	h.PutU32(pdu.OffExpCmdSN, 3)
	h.PutU32(pdu.OffMaxCmdSN, 40)
	if set != nil {
		set(h)
	}
	h.SetDataLen(len(data))
	return append(append(append([]byte{}, h...), data...), make([]byte, pdu.Pad(len(data)))...)
}

// FuzzInbound feeds a session with a read (tag 0x10000) and a write (tag 0x10001) in flight
// arbitrary bytes. Whatever they are, each command is called back once, nothing is written outside
// the read's buffer, and the session ends.
func FuzzInbound(f *testing.F) {
	read, write := func(h pdu.BHS) { h.SetITT(0x10000) }, func(h pdu.BHS) { h.SetITT(0x10001) }
	f.Add([]byte{})
	f.Add(targetPDU(pdu.SCSIResp, read, nil))
	f.Add(targetPDU(pdu.SCSIResp, read, []byte{0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 6, 0, 0, 0, 0}))
	f.Add(targetPDU(pdu.DataIn, read, make([]byte, 4096)))
	f.Add(targetPDU(pdu.DataIn, func(h pdu.BHS) { read(h); h.SetFlags(pdu.Final | pdu.StatusBit) }, make([]byte, 100)))
	f.Add(targetPDU(pdu.R2T, func(h pdu.BHS) {
		write(h)
		h.SetTTT(9)
		h.PutU32(pdu.OffBufferOff, 8192)
		h.PutU32(pdu.OffDesired, 8192)
	}, nil))
	f.Add(append(targetPDU(pdu.NopIn, func(h pdu.BHS) { h.SetTTT(4) }, nil), targetPDU(pdu.SCSIResp, write, nil)...))
	f.Add(targetPDU(pdu.AsyncMsg, func(h pdu.BHS) { h[pdu.OffAsyncEvent] = 1 }, nil))
	f.Add(targetPDU(pdu.Reject, nil, make([]byte, 48)))
	f.Add(targetPDU(pdu.TMFResp, read, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := socketPair(t)
		cfg, err := SessionConfig{InitiatorName: "iqn.2026-01.test:h", Target: "iqn.2026-01.test:t", Portal: "fuzz:1"}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		p := pdu.DefaultParams()
		p.MaxSend, p.MaxBurst = 8192, 8192
		if len(data) > 0 && data[0]&0x80 != 0 {
			p.HeaderDigest, p.DataDigest = true, true
		}
		s, err := newSession(cfg, &loginState{cfg: &cfg, conn: ours, p: p, cmdSN: 1, statSN: 5, maxCmd: 64})
		if err != nil {
			t.Fatal(err)
		}
		s.start()
		guarded := bytes.Repeat([]byte{0xee}, 3*4096)
		calls := make(chan *Command, 4)
		r := &Command{In: guarded[4096:8192:8192], Done: func(c *Command) { calls <- c }}
		w := &Command{Out: make([]byte, 32768), Done: func(c *Command) { calls <- c }}
		for _, c := range []*Command{r, w} {
			if err := s.Submit(c); err != nil {
				t.Fatal(err)
			}
		}
		go func() { // takes what the session sends, so that it never has to wait
			b := make([]byte, 4096)
			for {
				if _, err := theirs.Read(b); err != nil {
					return
				}
			}
		}()
		_, _ = theirs.Write(data)
		_ = theirs.(*net.UnixConn).CloseWrite()
		<-s.Done()
		theirs.Close()
		if len(calls) != 2 {
			t.Fatalf("%d callbacks for 2 commands", len(calls))
		}
		for i := range 4096 {
			if guarded[i] != 0xee || guarded[8192+i] != 0xee {
				t.Fatal("bytes outside the buffer were written")
			}
		}
	})
}

// FuzzLogin: whatever a target answers, login ends with an error or a session within limits, and no
// secret is in the error.
func FuzzLogin(f *testing.F) {
	login := func(flags byte, text string) []byte {
		return targetPDU(pdu.LoginResp, func(h pdu.BHS) { h.SetFlags(flags); h.SetITT(1) }, []byte(text))
	}
	toOperational := pdu.LoginFlags(true, false, pdu.StageSecurity, pdu.StageOperational)
	toFull := pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature)
	f.Add(append(login(toOperational, "AuthMethod=None\x00"), login(toFull, "MaxRecvDataSegmentLength=8192\x00FirstBurstLength=512\x00")...), false)
	f.Add(append(login(0, "AuthMethod=CHAP\x00"), append(login(0, "CHAP_A=7\x00CHAP_I=3\x00CHAP_C=0x0102030405\x00"),
		login(toOperational, "CHAP_N=t\x00CHAP_R=0x00\x00")...)...), true)
	f.Add(login(pdu.LoginFlags(false, true, 0, 0), "AuthMethod=No"), false)
	f.Add(targetPDU(pdu.LoginResp, func(h pdu.BHS) { h.SetITT(1); h.PutU16(pdu.OffLoginStatus, 0x0201) }, nil), true)
	f.Fuzz(func(t *testing.T, data []byte, chap bool) {
		ours, theirs := socketPair(t)
		defer ours.Close()
		cfg := SessionConfig{InitiatorName: "iqn.2026-01.test:h", Target: "iqn.2026-01.test:t", Portal: "fuzz:1"}
		if chap {
			cfg.Auth, cfg.MutualAuth = &CHAP{"u", "fuzz-secret-one"}, &CHAP{"t", "fuzz-secret-two"}
		}
		cfg, err := cfg.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			b := make([]byte, 4096)
			for {
				if _, err := theirs.Read(b); err != nil {
					return
				}
			}
		}()
		go func() {
			_, _ = theirs.Write(data)
			_ = theirs.(*net.UnixConn).CloseWrite()
		}()
		l := &loginState{cfg: &cfg, conn: ours}
		err = l.run(context.Background())
		theirs.Close()
		if err != nil && bytes.Contains([]byte(err.Error()), []byte("fuzz-secret")) {
			t.Fatalf("secret in %q", err)
		}
		if err == nil && (chap || l.p.MaxSend < 512 || l.p.FirstBurst > l.p.MaxBurst) {
			t.Fatalf("logged in with chap=%v, %+v", chap, l.p)
		}
	})
}

// FuzzPages: parsers of what a logical unit returns neither panic nor return impossible values.
func FuzzPages(f *testing.F) {
	for _, s := range []string{"", "00830008010300086000000000000001", "7000060000000a000000002a06", "720b4703000000",
		"7203110000000c0a80000000000000001234", "00000000000003ff0000020000000000c0",
		"0000001c1005000080000001000200010000000101000002000200010000000200000000", "00b0003c0000000000001000"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ParseSense(b)
		if r, err := parseRTPG(b); err == nil && len(r.Groups) > len(b)/8 {
			t.Fatalf("%d groups in %d bytes", len(r.Groups), len(b))
		}
		_, _ = parseDeviceID(b)
		var l limits
		parseBlockLimits(b, &l)
		parseProvisioning(b, &l)
		c, err := parseCapacity16(b)
		if err != nil {
			c = capacity{blocks: 1 << 20, blockSize: 512}
		}
		if g := newGeometry(c, l); g.size <= 0 || g.maxTransfer < g.blockSize || g.maxTransfer > largestTransfer || g.maxSame < int64(g.blockSize) {
			t.Fatalf("geometry %+v", g)
		}
	})
}
