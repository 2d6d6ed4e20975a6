package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Hazard 6: what is one character longer or shorter is another thing.
func TestHazard6Typed(t *testing.T) {
	a, err := parseNAA(wwid1)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := parseNAA(strings.ToUpper(wwid1)); err != nil || a != b || b.String() != wwid1 {
		t.Error(b, err)
	}
	short, err := parseNAA(wwid1[:16])
	if err != nil || short == a || !short.known() {
		t.Error(short, err)
	}
	if z, err := parseNAA(wwid1[:16] + strings.Repeat("0", 16)); err != nil || z == short {
		t.Error("the extension of zeros is an extension", err)
	}
	for _, s := range []string{"", wwid1[1:], wwid1 + "0", wwid1[:31] + "g"} {
		if id, err := parseNAA(s); err == nil || id.known() {
			t.Errorf("%q is %v", s, id)
		}
	}
	for uuid, ok := range map[string]bool{"mpath-3" + wwid1: true, "mpath-" + wwid1: false, "part1-mpath-3" + wwid1: false, "mpath-3" + wwid1 + "1": false,
		"LVM-3" + wwid1: false, "mpath-1" + wwid1: false, "": false} {
		if id, is := parseUUID(uuid); is != ok || ok && id != a {
			t.Errorf("%q: %v %v", uuid, id, is)
		}
	}
	one, eleven := hctl{host: 1, lun: 1}, hctl{host: 1, lun: 11}
	for s, want := range map[string]hctl{"1:0:0:1": one, "1:0:0:11": eleven, "12:3:4:16684": {12, 3, 4, 16684}} {
		if at, err := parseHCTL(s); err != nil || at != want || at.String() != s {
			t.Error(at, err)
		}
	}
	for _, s := range []string{"", "1:0:0", "1:0:0:1:2", "a:0:0:1", "1:0:0:-1", "host1"} {
		if at, err := parseHCTL(s); err == nil {
			t.Errorf("%q is %v", s, at)
		}
	}
	for lun, want := range map[uint16]uint64{0: 0, 255: 255, 256: 0x4100, 300: 0x412c, attach.MaxLUN: 0x7fff} {
		if got := kernelLUN(lun); got != want {
			t.Errorf("LUN %d: %#x, want %#x", lun, got, want)
		}
	}
	u := must(t, attachment("v", 1, 1, wwid1))
	mapped := attachment("v", 1, 1, wwid1)
	mapped.Portals = []string{"[::ffff:10.0.1.1]:3260", "10.0.2.1:3260"}
	mapped.TargetIQN = strings.ToUpper(mapped.TargetIQN[:3]) + mapped.TargetIQN[3:]
	if m := must(t, mapped); m.portals[0] != u.portals[0] || m.target != u.target {
		t.Error(m.portals, m.target)
	}
}

// Hazards 21 and 29: nothing that is printed has a secret.
func TestHazard29Secrets(t *testing.T) {
	a := attachment("v", 1, 1, wwid1)
	a.Auth, a.MutualAuth = &attach.CHAP{User: "host", Secret: "swordfish1234"}, &attach.CHAP{User: "target", Secret: "hunter2hunter2"}
	u := must(t, a)
	n := nodeRecord{initiator: u.initiator, target: u.target, portal: u.portals[0], auth: u.auth, mutual: u.mutual}
	for _, s := range []string{fmt.Sprint(n), fmt.Sprintf("%+v %#v", n, n), step{do: doLogin, node: n}.String(), fmt.Sprintf("%v %+v %#v", u.auth, u.auth, u.mutual), fmt.Sprintf("%v", step{do: doNode, node: n})} {
		if strings.Contains(s, "swordfish") || strings.Contains(s, "hunter2") {
			t.Error(s)
		}
	}
	text := string(n.render())
	for _, line := range []string{"node.session.auth.authmethod = CHAP", "node.session.auth.username = host", "node.session.auth.password = swordfish1234",
		"node.session.auth.username_in = target", "node.session.auth.password_in = hunter2hunter2", "node.startup = manual", "node.session.scan = manual",
		"iface.iscsi_ifacename = gemel", "iface.initiatorname = " + a.HostIQN, "node.conn[0].address = 10.0.1.1", "node.conn[0].port = 3260"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%q is missing in\n%s", line, text)
		}
	}
}

// The legs of a striped volume are checked like LUNs, and none of them is another one.
func TestStripedIdentity(t *testing.T) {
	for name, c := range map[string]struct {
		stripe int64
		legs   []attach.Leg
		says   string
	}{
		"two legs":      {64 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}, {LUN: 300, WWID: wwid2}}, ""},
		"one leg":       {64 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}}, "legs"},
		"odd stripes":   {65 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}, {LUN: 2, WWID: wwid2}}, "power of two"},
		"one WWID":      {64 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}, {LUN: 2, WWID: wwid1}}, "named twice"},
		"one LUN":       {64 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}, {LUN: 1, WWID: wwid2}}, "named twice"},
		"a short WWID":  {64 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}, {LUN: 2, WWID: wwid2[:31]}}, "legs"},
		"an absent LUN": {64 << 10, []attach.Leg{{LUN: 1, WWID: wwid1}, {LUN: attach.MaxLUN + 1, WWID: wwid2}}, "is above"},
	} {
		a := attachment("v", 1, 0, "")
		a.Stripe, a.Legs = c.stripe, c.legs
		u, err := parse(a)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, attach.ErrInvalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		each := u.each()
		if len(each) != 2 || each[0].lun != 1 || each[1].lun != 0x4000|300 || each[1].id.String() != wwid2 || each[1].striped() || u.lun != 0 || u.id.known() || u.layout().Size != 64<<10 {
			t.Errorf("%+v", u)
		}
	}
	long := strings.Repeat("v", 128)
	if stripedUUID("a") == stripedUUID("b") || len(stripedUUID(long)) > 128 || len(stripedName(long)) > 127 || stripedName("lun-1") != "gemel-lun-1" {
		t.Errorf("%s, %s", stripedUUID(long), stripedName(long))
	}
}
