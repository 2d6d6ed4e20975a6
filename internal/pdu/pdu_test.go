package pdu

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// The digests of RFC 7143 appendix A.4 (CRC32C examples), as bytes on the wire.
func TestDigestVectors(t *testing.T) {
	up := make([]byte, 32)
	for i := range up {
		up[i] = byte(i)
	}
	for _, c := range []struct {
		name string
		in   []byte
		want []byte
	}{
		{"zeroes", make([]byte, 32), []byte{0xaa, 0x36, 0x91, 0x8a}},
		{"ones", bytes.Repeat([]byte{0xff}, 32), []byte{0x43, 0xab, 0xa8, 0x62}},
		{"incrementing", up, []byte{0x4e, 0x79, 0xdd, 0x46}},
	} {
		var got [4]byte
		PutDigest(got[:], Digest(c.in))
		if !bytes.Equal(got[:], c.want) {
			t.Errorf("%s: % x, want % x", c.name, got, c.want)
		}
		if GetDigest(got[:]) != Digest(c.in) {
			t.Errorf("%s: GetDigest differs", c.name)
		}
	}
	if DataDigest([]byte("abcde")) != Digest([]byte("abcde\x00\x00\x00")) {
		t.Error("padding is not part of the data digest")
	}
	if UpdateDigest(Digest([]byte("ab")), []byte("cd")) != Digest([]byte("abcd")) {
		t.Error("UpdateDigest does not continue")
	}
}

func TestHeaderFields(t *testing.T) {
	h := BHS(make([]byte, HeaderLen))
	h.SetOp(SCSICmd, true)
	h[4] = 3
	h.SetLUN(0x0001020304050607)
	h.SetITT(0xdeadbeef)
	h.PutU16(OffTSIH, 0x1234)
	if h.Op() != SCSICmd || !h.Immediate() || h.AHSLen() != 12 || h.ITT() != 0xdeadbeef || h.U16(OffTSIH) != 0x1234 {
		t.Fatalf("header reads back wrong: % x", []byte(h))
	}
	h.SetDataLen(0x123456)
	if h.DataLen() != 0x123456 || h.AHSLen() != 0 {
		t.Fatal("data length")
	}
	h.SetFlags(LoginFlags(true, false, StageOperational, StageFullFeature))
	if h.CSG() != 1 || h.NSG() != 3 || h.Flags()&Final == 0 {
		t.Fatalf("login flags %#x", h.Flags())
	}
	for n, want := range []int{0, 3, 2, 1, 0} {
		if Pad(n) != want {
			t.Errorf("Pad(%d) = %d", n, Pad(n))
		}
	}
	if s := LoginStatus(0x02fe).String(); s != "login status 0x02fe" {
		t.Error(s)
	}
	if LoginForbidden.Class() != 2 || LoginForbidden.String() != "authorization failure" {
		t.Error(LoginForbidden)
	}
}

func TestParseText(t *testing.T) {
	long := strings.Repeat("v", 256)
	for _, c := range []struct {
		name, in string
		want     error
		pairs    int
	}{
		{"empty", "", nil, 0},
		{"two", "A=1\x00B=\x00", nil, 2},
		{"repeated", "A=1\x00A=2\x00", nil, 2},
		{"extra NUL", "A=1\x00\x00", nil, 1},
		{"equals in value", "A=b=c\x00", nil, 1},
		{"vendor key", "X#org.example.x_y=1\x00", nil, 1},
		{"no NUL", "A=1", ErrTextSyntax, 0},
		{"no equals", "A\x00", ErrTextSyntax, 0},
		{"no key", "=1\x00", ErrTextSyntax, 0},
		{"space in key", "A b=1\x00", ErrTextSyntax, 0},
		{"long key", strings.Repeat("k", 64) + "=1\x00", ErrTextTooLong, 0},
		{"longest key", strings.Repeat("k", 63) + "=1\x00", nil, 1},
		{"long value", "A=" + long + "\x00", ErrTextTooLong, 0},
		{"longest value", "A=" + long[1:] + "\x00", nil, 1},
		{"list", "A=" + long[1:] + "," + long[1:] + "\x00", nil, 1},
		{"long element", "A=1," + long + "\x00", ErrTextTooLong, 0},
		{"binary", "CHAP_R=0x" + long + "\x00", nil, 1},
		{"too long", "A=" + strings.Repeat("1,", 5000) + "\x00", ErrTextTooLong, 0},
		{"total", strings.Repeat("A=1\x00", MaxTextTotal/4+1), ErrTextTooLong, 0},
		{"many", strings.Repeat("A=1\x00", MaxPairs+1), ErrTextTooLong, 0},
	} {
		got, err := ParseText([]byte(c.in))
		if !errors.Is(err, c.want) || len(got) != c.pairs {
			t.Errorf("%s: %d pairs, %v", c.name, len(got), err)
		}
	}
	tx, _ := ParseText([]byte("A=1\x00B=2\x00A=3\x00"))
	if v, ok := tx.Get("A"); v != "1" || !ok || tx.Repeated() != "A" {
		t.Error("Get or Repeated")
	}
	if _, ok := tx.Get("C"); ok {
		t.Error("Get found what is not there")
	}
}

func TestValuesOfKeysAreParsed(t *testing.T) {
	for in, want := range map[string]uint32{"512": 512, "0x200": 512, "0X1fF": 511, "0": 0} {
		if n, err := ParseNumber(in, 0, 1000); err != nil || n != want {
			t.Errorf("%s: %d %v", in, n, err)
		}
	}
	for _, in := range []string{"", "0x", "-1", "+1", "1001", "1_0", "4294967296", "Yes", " 1"} {
		if _, err := ParseNumber(in, 0, 1000); !errors.Is(err, ErrValue) {
			t.Errorf("%q accepted", in)
		}
	}
	for in, want := range map[string]string{"0x616263": "abc", "0xABC": "\x0a\xbc", "0bYWJj": "abc", "0BYWI=": "ab"} {
		if b, err := DecodeBinary(in, 16); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", in, b, err)
		}
	}
	for _, in := range []string{"", "0x", "616263", "0xzz", "0b!!", "0c00", "0x" + strings.Repeat("00", 17)} {
		if _, err := DecodeBinary(in, 16); !errors.Is(err, ErrValue) {
			t.Errorf("%q accepted", in)
		}
	}
	if b, err := DecodeBinary(EncodeBinary([]byte{0, 1, 255}), 3); err != nil || !bytes.Equal(b, []byte{0, 1, 255}) {
		t.Error("binary round trip")
	}
	for name, ok := range map[string]bool{"iqn.2024-01.org.x:a": true, "IQN.2024": false, "iqn.a b": false, "foo.x": false,
		"naa.52004567ba64678d": true, "eui.02004567a425678d": true, "": false, "iqn." + strings.Repeat("a", 220): false} {
		if ValidName(name) != ok {
			t.Errorf("ValidName(%q) = %v", name, !ok)
		}
	}
}

func TestNegotiationOfParameters(t *testing.T) {
	own := DefaultParams()
	own.DataDigest, own.InitialR2T, own.MaxBurst, own.DefaultTime2Wait = true, false, 1<<20, 0
	for _, c := range []struct{ key, offer, answer string }{
		{"HeaderDigest", "CRC32C,None", "None"}, // not wished for
		{"DataDigest", "CRC32C,None", "CRC32C"},
		{"DataDigest", "None,CRC32C", "None"},
		{"MaxBurstLength", "16776192", "1048576"},
		{"MaxBurstLength", "8192", "8192"},
		{"InitialR2T", "No", "No"},
		{"InitialR2T", "Yes", "Yes"},
		{"ImmediateData", "Yes", "Yes"},
		{"ImmediateData", "No", "No"},
		{"DefaultTime2Wait", "5", "5"},
		{"MaxRecvDataSegmentLength", "4096", ""},
		{"ErrorRecoveryLevel", "2", "0"},
		{"MaxConnections", "4", "1"},
	} {
		p := DefaultParams()
		got, err := p.Respond(c.key, c.offer, &own)
		if err != nil || got != c.answer {
			t.Errorf("%s=%s: answer %q, %v", c.key, c.offer, got, err)
		}
	}
	for _, c := range [][2]string{{"MaxBurstLength", "511"}, {"HeaderDigest", "MD5"}, {"InitialR2T", "maybe"},
		{"ErrorRecoveryLevel", "3"}, {"Nonsense", "1"}, {"MaxRecvDataSegmentLength", "16777216"}} {
		p := DefaultParams()
		if got, err := p.Respond(c[0], c[1], &own); !errors.Is(err, ErrValue) {
			t.Errorf("%v: %q %v", c, got, err)
		}
	}
}

// Both sides must come to the same parameters, whatever they wish for.
func TestOfferRespondAccept(t *testing.T) {
	for i := range 64 {
		ini, tgt := DefaultParams(), DefaultParams()
		ini.HeaderDigest, ini.InitialR2T, ini.ImmediateData = i&1 != 0, i&2 != 0, i&4 != 0
		tgt.HeaderDigest, tgt.InitialR2T, tgt.ImmediateData = i&8 != 0, i&16 != 0, i&32 != 0
		ini.MaxBurst, tgt.MaxBurst = uint32(65536+i*512), uint32(100000)
		a, b := DefaultParams(), DefaultParams()
		var offer Text
		ini.Offer(&offer, false)
		for _, p := range offer {
			ans, err := b.Respond(p.Key, p.Value, &tgt)
			if err != nil {
				t.Fatal(err)
			}
			if ans == "" {
				continue
			}
			if err := a.Accept(p.Key, ans, &ini); err != nil {
				t.Fatal(err)
			}
		}
		if a != b {
			t.Fatalf("wishes %d: %+v against %+v", i, a, b)
		}
	}
	own := DefaultParams()
	own.ImmediateData = false
	for _, c := range [][2]string{{"HeaderDigest", "CRC32C"}, {"MaxBurstLength", "262145"}, {"ImmediateData", "Yes"},
		{"InitialR2T", "No"}, {"DefaultTime2Wait", "1"}, {"MaxConnections", "Reject"}, {"Nonsense", "1"}} {
		p := DefaultParams()
		if err := p.Accept(c[0], c[1], &own); !errors.Is(err, ErrValue) {
			t.Errorf("answer %v accepted", c)
		}
	}
	p := DefaultParams()
	if err := p.Accept("MaxBurstLength", "Irrelevant", &own); err != nil {
		t.Error(err)
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "A=1\x00", "InitiatorName=iqn.x:y\x00SessionType=Normal\x00", "A", "=\x00", "A=\x00\x00",
		"CHAP_R=0x00ff\x00", "MaxBurstLength=0x200\x00", "CHAP_C=0bYWJj\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		tx, err := ParseText(in)
		if err != nil {
			return
		}
		again, err := ParseText(tx.Append(nil))
		if err != nil || len(again) != len(tx) {
			t.Fatalf("does not round trip: %v", err)
		}
		own := DefaultParams()
		for i, p := range tx {
			if again[i] != p {
				t.Fatalf("pair %d: %v != %v", i, again[i], p)
			}
			q := DefaultParams()
			if ans, err := q.Respond(p.Key, p.Value, &own); err == nil && len(ans) > MaxSimple {
				t.Fatalf("answer of %d bytes", len(ans))
			}
			_ = q.Accept(p.Key, p.Value, &own)
			if b, err := DecodeBinary(p.Value, 1024); err == nil && len(b) > 1024 {
				t.Fatal("limit of DecodeBinary")
			}
		}
	})
}
