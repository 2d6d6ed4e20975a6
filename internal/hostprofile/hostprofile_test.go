package hostprofile

import (
	"slices"
	"strings"
	"testing"
)

func TestHostsAreRecognisedByTheirNames(t *testing.T) {
	for iqn, want := range map[string]Profile{
		"iqn.2026-11.storage.gemel:node.worker-1":    Linux,
		"iqn.1993-08.org.debian:01:0123456789ab":     Linux,
		"iqn.1994-05.com.redhat:0123456789ab":        Linux,
		"iqn.2008-11.org.linux-kvm:vm-1":             QEMU,
		"IQN.2008-11.org.linux-kvm:VM-1":             QEMU,
		"iqn.2008-11.org.linux-kvm":                  QEMU,
		"iqn.2008-11.org.linux-kvmx:vm-1":            Linux,
		"iqn.1991-05.com.microsoft:host.example.com": Windows,
		"iqn.1998-01.com.vmware:esx-1-0a1b2c3d":      VMware,
		"iqn.2020-01.com.example:any":                Linux,
		"":                                           Linux,
	} {
		got, why := Of(iqn)
		if got != want || why == "" {
			t.Errorf("%q: %s, %s", iqn, got, why)
		}
		if unknown := strings.Contains(why, "spec.profile"); unknown != slices.Contains([]string{"", "iqn.2020-01.com.example:any", "iqn.2008-11.org.linux-kvmx:vm-1"}, iqn) {
			t.Errorf("%q: %s", iqn, why)
		}
	}
	if got, why := Effective(QEMU, "iqn.1993-08.org.debian:01:0"); got != QEMU || why != "spec.profile" {
		t.Error(got, why)
	}
	for _, auto := range []Profile{"", Auto} {
		if got, _ := Effective(auto, "iqn.1998-01.com.vmware:x"); got != VMware {
			t.Errorf("%q: %s", auto, got)
		}
	}
}
