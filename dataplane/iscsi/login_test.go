package iscsi

import (
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

const (
	otherHost = "iqn.2024-01.org.example:other"
	chapHost  = "iqn.2024-01.org.example:chap"
	oneWay    = "iqn.2024-01.org.example:oneway"
	badHost   = "iqn.2024-01.org.example:equal"
)

var testHosts = hostList{
	testHost: {},
	chapHost: {User: "ini", Secret: "initiator-secret", MutualUser: "tgt", MutualSecret: "target-secret"},
	oneWay:   {User: "ini", Secret: "initiator-secret"},
	badHost:  {User: "ini", Secret: "initiator-secret", MutualUser: "tgt", MutualSecret: "initiator-secret"},
}

func TestLoginMatrix(t *testing.T) {
	b := serve(t, nil, testHosts)
	toFFP := pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature)
	sec := pdu.LoginFlags(true, false, pdu.StageSecurity, pdu.StageOperational)
	names := func(kv ...string) pdu.Text {
		return append(pairs("InitiatorName", testHost, "TargetName", testTarget), pairs(kv...)...)
	}
	for _, x := range []struct {
		name  string
		flags byte
		tx    pdu.Text
		tsih  uint16
		want  pdu.LoginStatus
	}{
		{"plain", toFFP, names(), 0, pdu.LoginSuccess},
		{"normal", toFFP, names("SessionType", "Normal"), 0, pdu.LoginSuccess},
		{"upper-case names", toFFP, pairs("InitiatorName", strings.ToUpper(testHost), "TargetName", strings.ToUpper(testTarget)), 0, pdu.LoginSuccess},
		{"straight from security", pdu.LoginFlags(true, false, 0, 3), names("AuthMethod", "CHAP,None"), 0, pdu.LoginSuccess},
		{"security without AuthMethod", sec, names(), 0, pdu.LoginSuccess},
		{"discovery", toFFP, pairs("InitiatorName", testHost, "SessionType", "Discovery"), 0, pdu.LoginSuccess},
		{"no initiator name", toFFP, pairs("TargetName", testTarget), 0, pdu.LoginMissingParameter},
		{"no target name", toFFP, pairs("InitiatorName", testHost), 0, pdu.LoginMissingParameter},
		{"no text", toFFP, nil, 0, pdu.LoginMissingParameter},
		{"other target", toFFP, pairs("InitiatorName", testHost, "TargetName", testTarget+"x"), 0, pdu.LoginNotFound},
		{"unknown host", toFFP, pairs("InitiatorName", otherHost, "TargetName", testTarget), 0, pdu.LoginForbidden},
		{"unknown host discovers", toFFP, pairs("InitiatorName", otherHost, "SessionType", "Discovery"), 0, pdu.LoginForbidden},
		{"not a name", toFFP, pairs("InitiatorName", "host a", "TargetName", testTarget), 0, pdu.LoginInitiatorError},
		{"session type", toFFP, names("SessionType", "Odd"), 0, pdu.LoginBadSessionType},
		{"no such session", toFFP, names(), 0x7777, pdu.LoginNoSession},
		{"key twice", toFFP, names("MaxBurstLength", "1024", "MaxBurstLength", "2048"), 0, pdu.LoginInitiatorError},
		{"reserved stage", pdu.LoginFlags(true, false, 2, 3), names(), 0, pdu.LoginInitiatorError},
		{"starts in full feature", pdu.LoginFlags(true, false, 3, 3), names(), 0, pdu.LoginInitiatorError},
		{"backwards", pdu.LoginFlags(true, false, 1, 0), names(), 0, pdu.LoginInitiatorError},
		{"to the reserved stage", pdu.LoginFlags(true, false, 1, 2), names(), 0, pdu.LoginInitiatorError},
		{"T and C", toFFP | pdu.Continue, names(), 0, pdu.LoginInitiatorError},
		{"skips CHAP", toFFP, pairs("InitiatorName", chapHost, "TargetName", testTarget), 0, pdu.LoginAuthFailed},
		{"offers None against CHAP", sec, pairs("InitiatorName", chapHost, "TargetName", testTarget, "AuthMethod", "None"), 0, pdu.LoginAuthFailed},
		{"leaves security without CHAP", sec, pairs("InitiatorName", chapHost, "TargetName", testTarget), 0, pdu.LoginAuthFailed},
		{"insists on CHAP without secret", sec, names("AuthMethod", "CHAP"), 0, pdu.LoginAuthFailed},
		{"CHAP key out of order", sec, names("CHAP_A", "5"), 0, pdu.LoginAuthFailed},
		{"AuthMethod too late", toFFP, names("AuthMethod", "None"), 0, pdu.LoginInitiatorError},
		{"long key", toFFP, names(strings.Repeat("k", 64), "1"), 0, pdu.LoginInitiatorError},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := b.dial(t)
			c.tsih = x.tsih
			r, _ := c.loginPDU(x.flags, x.tx)
			if status(r) != x.want {
				t.Fatal(status(r))
			}
			if x.want != pdu.LoginSuccess {
				c.closed()
				return
			}
			if r.U16(pdu.OffTSIH) == 0 && r.NSG() == pdu.StageFullFeature {
				t.Error("TSIH 0")
			}
		})
	}
	if n := b.Stats().LoginsFailed.Load(); n < 20 {
		t.Errorf("%d failed logins counted", n)
	}
}

func TestLoginVersion(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.dial(t)
	h := c.request(pdu.LoginReq, pdu.LoginFlags(true, false, 1, 3), true)
	h[pdu.OffVersionMax], h[pdu.OffVersionMin] = 9, 8
	c.send(h, nil)
	if r, _ := c.recv(); status(r) != pdu.LoginBadVersion {
		t.Fatal(status(r))
	}
	c.closed()
}

func TestLoginKeys(t *testing.T) {
	b := serve(t, func(c *Config) { c.Alias = "pair one" }, nil)
	c := b.connect(t, "HeaderDigest", "CRC32C,None", "DataDigest", "None,CRC32C", "MaxConnections", "8", "InitialR2T", "No",
		"ImmediateData", "Yes", "MaxBurstLength", "16776192", "FirstBurstLength", "262144", "DefaultTime2Wait", "2",
		"DefaultTime2Retain", "20", "MaxOutstandingR2T", "8", "DataPDUInOrder", "No", "DataSequenceInOrder", "No",
		"ErrorRecoveryLevel", "2", "X-org.example.key", "1", "OFMarker", "No", "MaxRecvDataSegmentLength", "8192", "iSCSIProtocolLevel", "1")
	for k, want := range map[string]string{"HeaderDigest": "CRC32C", "DataDigest": "None", "MaxConnections": "1", "InitialR2T": "No",
		"ImmediateData": "Yes", "MaxBurstLength": "1048576", "FirstBurstLength": "262144", "DefaultTime2Wait": "2", "DefaultTime2Retain": "0",
		"MaxOutstandingR2T": "1", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes", "ErrorRecoveryLevel": "0",
		"X-org.example.key": "NotUnderstood", "MaxRecvDataSegmentLength": "262144", "TargetPortalGroupTag": "1", "TargetAlias": "pair one"} {
		if got, _ := c.answers.Get(k); got != want {
			t.Errorf("%s=%s, want %s", k, got, want)
		}
	}
	c.ping()
	s := b.Sessions()
	if len(s) != 1 || s[0].Initiator != testHost || !s[0].HeaderDigest || s[0].DataDigest || s[0].ISID != [6]byte{0x80} {
		t.Errorf("%+v", s)
	}
	// A value that is refused does not cost the login.
	c = b.dial(t)
	r, out := c.loginPDU(pdu.LoginFlags(true, false, 1, 3), pairs("InitiatorName", testHost, "TargetName", testTarget,
		"MaxBurstLength", "1", "InitialR2T", "perhaps", "DataDigest", "MD5"))
	for _, k := range []string{"MaxBurstLength", "InitialR2T", "DataDigest"} {
		if v, _ := out.Get(k); v != "Reject" || status(r) != 0 {
			t.Errorf("%s=%s", k, v)
		}
	}
}

// Text split over PDUs with the C bit, and a login in three steps.
func TestLoginSteps(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.dial(t)
	r, out := c.loginPDU(pdu.LoginFlags(false, true, 0, 0), pairs("InitiatorName", testHost))
	if status(r) != 0 || r.Flags() != 0 || len(out) != 0 {
		t.Fatalf("% x", []byte(r))
	}
	r, out = c.loginPDU(pdu.LoginFlags(true, false, 0, 1), pairs("TargetName", testTarget, "AuthMethod", "CHAP,None"))
	if m, _ := out.Get("AuthMethod"); status(r) != 0 || m != "None" || r.NSG() != 1 {
		t.Fatalf("% x %v", []byte(r), out)
	}
	r, _ = c.loginPDU(pdu.LoginFlags(false, false, 1, 0), pairs("ImmediateData", "Yes"))
	if status(r) != 0 || r.Flags() != pdu.LoginFlags(false, false, 1, 0) {
		t.Fatalf("% x", []byte(r))
	}
	r, _ = c.loginPDU(pdu.LoginFlags(true, false, 1, 3), nil)
	if status(r) != 0 || r.U16(pdu.OffTSIH) == 0 {
		t.Fatalf("% x", []byte(r))
	}
	c.check = true
	c.ping()
}

// Logins that never end are cut, by time, by number of PDUs and by size of text.
func TestLoginLimits(t *testing.T) {
	b := serve(t, func(c *Config) { c.LoginTimeout = time.Second; c.Limits.Logins = 2 }, nil)
	one, two := b.dial(t), b.dial(t)
	eventually(t, "two half-open logins", func() bool { return b.half.Len() == 2 })
	two.closed() // in time, without having said anything
	one.closed()
	eventually(t, "room for logins", func() bool { return b.half.Len() == 0 })

	b = serve(t, nil, nil)
	c := b.dial(t)
	for i := 0; ; i++ {
		r, _ := c.loginPDU(pdu.LoginFlags(false, true, 1, 0), pairs("InitiatorName", testHost))
		if status(r) == pdu.LoginInitiatorError {
			break
		}
		if i > loginPDUs {
			t.Fatal("endless login")
		}
	}
	c.closed()
	c = b.dial(t)
	big := pairs("CHAP_R", "0x"+strings.Repeat("00", 4000))
	for i := 0; ; i++ {
		r, _ := c.loginPDU(pdu.LoginFlags(false, true, 1, 0), big)
		if status(r) == pdu.LoginInitiatorError {
			break
		}
		if i > 9 {
			t.Fatal("endless text")
		}
	}
	c.closed()
}

// chapLogin goes through CHAP and returns the final answer; tamper may change what the initiator
// sends.
func chapLogin(t *testing.T, b *bench, host, algorithms string, mutual bool, tamper func(tx *pdu.Text, challenge string)) (pdu.LoginStatus, pdu.Text, string) {
	t.Helper()
	c := b.dial(t)
	sec := pdu.LoginFlags(false, false, 0, 0)
	r, out := c.loginPDU(sec, pairs("InitiatorName", host, "TargetName", testTarget, "AuthMethod", "CHAP,None"))
	if m, _ := out.Get("AuthMethod"); status(r) != 0 || m != "CHAP" {
		t.Fatal(status(r), out)
	}
	r, out = c.loginPDU(sec, pairs("CHAP_A", algorithms))
	if status(r) != 0 {
		return status(r), nil, ""
	}
	alg, _ := out.Get("CHAP_A")
	ids, _ := out.Get("CHAP_I")
	cs, _ := out.Get("CHAP_C")
	id, _ := pdu.ParseNumber(ids, 0, 255)
	challenge, err := pdu.DecodeBinary(cs, 1024)
	n, err2 := pdu.ParseNumber(alg, 0, 9)
	if err != nil || err2 != nil {
		t.Fatal(out)
	}
	tx := pairs("CHAP_N", "ini", "CHAP_R", pdu.EncodeBinary(chapDigest(int(n), byte(id), "initiator-secret", challenge)))
	if mutual {
		tx.Add("CHAP_I", "17")
		tx.Add("CHAP_C", "0x0102030405060708")
	}
	if tamper != nil {
		tamper(&tx, cs)
	}
	r, out = c.loginPDU(pdu.LoginFlags(true, false, 0, 3), tx)
	if status(r) == pdu.LoginSuccess {
		c.check = true
		c.ping()
	} else {
		c.closed()
	}
	return status(r), out, alg
}

func TestCHAP(t *testing.T) {
	b := serve(t, nil, testHosts)
	set := func(key, value string) func(*pdu.Text, string) {
		return func(tx *pdu.Text, _ string) {
			for i := range *tx {
				if (*tx)[i].Key == key {
					(*tx)[i].Value = value
				}
			}
		}
	}
	for _, x := range []struct {
		name, host, algorithms string
		mutual                 bool
		tamper                 func(*pdu.Text, string)
		want                   pdu.LoginStatus
		alg                    string
	}{
		{"one way", oneWay, "5", false, nil, pdu.LoginSuccess, "5"},
		{"SHA-256 wins", oneWay, "5,7", false, nil, pdu.LoginSuccess, "7"},
		{"SHA-256 before others", oneWay, "6,7,5", false, nil, pdu.LoginSuccess, "7"},
		{"MD5 last", oneWay, "6,5,8,7", false, nil, pdu.LoginSuccess, "7"},
		{"mutual", chapHost, "5", true, nil, pdu.LoginSuccess, "5"},
		{"mutual SHA-256", chapHost, "7", true, nil, pdu.LoginSuccess, "7"},
		{"unknown algorithm", chapHost, "6", false, nil, pdu.LoginAuthFailed, ""},
		{"wrong response", oneWay, "5", false, set("CHAP_R", "0x000102030405060708090a0b0c0d0e0f"), pdu.LoginAuthFailed, "5"},
		{"short response", oneWay, "5", false, set("CHAP_R", "0x00"), pdu.LoginAuthFailed, "5"},
		{"no response", oneWay, "5", false, func(tx *pdu.Text, _ string) { *tx = (*tx)[:1] }, pdu.LoginAuthFailed, "5"},
		{"wrong name", oneWay, "5", false, set("CHAP_N", "somebody"), pdu.LoginAuthFailed, "5"},
		{"reflected", chapHost, "5", true, func(tx *pdu.Text, c string) { set("CHAP_C", c)(tx, c) }, pdu.LoginAuthFailed, "5"},
		{"target has no secret", oneWay, "5", true, nil, pdu.LoginAuthFailed, "5"},
		{"equal secrets", badHost, "5", true, nil, pdu.LoginAuthFailed, "5"},
		{"identifier without challenge", chapHost, "5", true, func(tx *pdu.Text, _ string) { *tx = (*tx)[:3] }, pdu.LoginAuthFailed, "5"},
	} {
		t.Run(x.name, func(t *testing.T) {
			st, out, alg := chapLogin(t, b, x.host, x.algorithms, x.mutual, x.tamper)
			if st != x.want || alg != x.alg {
				t.Fatal(st, alg)
			}
			if !x.mutual || st != pdu.LoginSuccess {
				return
			}
			n, _ := pdu.ParseNumber(alg, 0, 9)
			want := pdu.EncodeBinary(chapDigest(int(n), 17, "target-secret", []byte{1, 2, 3, 4, 5, 6, 7, 8}))
			name, _ := out.Get("CHAP_N")
			if r, _ := out.Get("CHAP_R"); r != want || name != "tgt" {
				t.Fatalf("the target answers %s as %s", r, name)
			}
		})
	}
}

// Responses computed by another implementation (coreutils' md5sum and sha256sum).
func TestChapDigest(t *testing.T) {
	for alg, want := range map[int]string{
		chapMD5:    "0x53172fdfb5c153830de302f4b12a5296",
		chapSHA256: "0xbf9743b92a704b3492f2caca3b0d2d1ff49eb795922bd1ae8626ff8fd9e32038",
	} {
		if got := pdu.EncodeBinary(chapDigest(alg, 17, "initiator-secret", []byte{1, 2, 3, 4, 5, 6, 7, 8})); got != want {
			t.Errorf("algorithm %d: %s", alg, got)
		}
	}
}

func TestDiscoverySessionListsThePortals(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.dial(t)
	r, out := c.loginPDU(pdu.LoginFlags(true, false, 1, 3), pairs("InitiatorName", testHost, "SessionType", "Discovery",
		"MaxBurstLength", "65536", "HeaderDigest", "None", "MaxRecvDataSegmentLength", "512"))
	if v, _ := out.Get("MaxBurstLength"); status(r) != 0 || v != "Irrelevant" {
		t.Fatal(status(r), out)
	}
	c.check, c.digests = true, true
	all := "TargetName=" + testTarget + "\x00TargetAddress=192.0.2.1:3260,1\x00TargetAddress=[2001:db8::2]:3260,2\x00"
	for in, want := range map[string]string{"All": all, testTarget: all, "iqn.2000-01.x:y": "", "": "SendTargets=Reject\x00"} {
		h := c.request(pdu.TextReq, pdu.Final, false)
		c.send(h, pairs("SendTargets", in).Append(nil))
		r, data := c.recv()
		if r.Op() != pdu.TextResp || string(data) != want || r.Flags() != pdu.Final || r.TTT() != pdu.Reserved {
			t.Errorf("SendTargets=%s: %q flags %#x", in, data, r.Flags())
		}
	}
	// More portals than fit into one segment of 512 bytes: the rest is fetched.
	var many []Portal
	for i := range 40 {
		many = append(many, Portal{"192.0.2.1:3260", uint16(i + 1)})
	}
	b.SetPortals(many)
	h := c.request(pdu.TextReq, pdu.Final, true)
	c.send(h, pairs("SendTargets", "All").Append(nil))
	var text []byte
	for {
		r, data := c.recv()
		if r.Op() != pdu.TextResp || r.ITT() != h.ITT() {
			t.Fatalf("opcode %#x", r.Op())
		}
		text = append(text, data...)
		if r.Flags() == pdu.Final {
			break
		}
		next := c.request(pdu.TextReq, pdu.Final, true)
		next.SetITT(h.ITT())
		next.SetTTT(r.TTT())
		c.send(next, nil)
	}
	if tx, err := pdu.ParseText(text); err != nil || len(tx) != 41 {
		t.Errorf("%d pairs, %v", len(tx), err)
	}
	if n := b.dev.opened; n != 0 {
		t.Errorf("discovery opened %d nexuses", n)
	}
	c.send(c.read(0, 1), nil)
	c.closed()
}

func TestTextInSession(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	ask := func(kv ...string) string {
		c.send(c.request(pdu.TextReq, pdu.Final, false), pairs(kv...).Append(nil))
		r, data := c.recv()
		if r.Op() != pdu.TextResp {
			t.Fatalf("opcode %#x", r.Op())
		}
		return string(data)
	}
	if got := ask("SendTargets", ""); !strings.HasPrefix(got, "TargetName="+testTarget) {
		t.Errorf("%q", got)
	}
	if got := ask("SendTargets", "All", "MaxBurstLength", "1024", "X-y", "1"); got != "SendTargets=Reject\x00MaxBurstLength=Reject\x00X-y=NotUnderstood\x00" {
		t.Errorf("%q", got)
	}
	if got := ask("MaxRecvDataSegmentLength", "1024"); got != "" {
		t.Errorf("%q", got)
	}
	c.params.MaxRecv = 1024
	h := c.read(0, 8)
	c.send(h, nil)
	if r := c.result(h.ITT()); r.pdus != 4 || len(r.data) != 4096 {
		t.Errorf("%d PDUs after a smaller segment was declared", r.pdus)
	}
	c.send(c.request(pdu.TextReq, pdu.Final, false), []byte("nonsense"))
	if r, _ := c.recv(); r.Op() != pdu.Reject {
		t.Errorf("opcode %#x", r.Op())
	}
	c.ping()
}

// A target that insists on digests takes them from an initiator that would rather not, and refuses
// one that cannot.
func TestDigestPolicy(t *testing.T) {
	var p DigestPolicy
	if err := p.Set("prefer"); err == nil {
		t.Fatal("an unknown policy must be refused")
	}
	for _, x := range []struct {
		policy  DigestPolicy
		offered string
		want    string
	}{
		{DigestAllow, "None,CRC32C", "None"}, {DigestAllow, "CRC32C,None", "CRC32C"},
		{DigestRequire, "None,CRC32C", "CRC32C"}, {DigestRefuse, "CRC32C,None", "None"},
	} {
		own := pdu.DefaultParams()
		own.HeaderDigest = x.policy != DigestRefuse
		params := pdu.DefaultParams()
		got, err := params.Respond("HeaderDigest", x.policy.offered(x.offered), &own)
		if err != nil || got != x.want {
			t.Errorf("%v, %q offered: %q %v, want %q", x.policy, x.offered, got, err, x.want)
		}
	}
}
