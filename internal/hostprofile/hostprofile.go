// Package hostprofile recognises what kind of host an initiator is.
package hostprofile

import "strings"

// Profile is a kind of host. docs/decisions/0063 says which kinds are answered differently.
type Profile string

// The profiles, as Host.spec.profile has them. Auto is recognised by the iSCSI name.
const (
	Auto    Profile = "Auto"
	Linux   Profile = "Linux"   // kernel initiator, or another one with several paths and ALUA
	QEMU    Profile = "QEMU"    // block driver of QEMU: libiscsi, one path, no ALUA
	Windows Profile = "Windows" // MPIO with MSDSM
	VMware  Profile = "VMware"  // ESXi with VMW_SATP_ALUA
)

// All are the profiles.
var All = []Profile{Auto, Linux, QEMU, Windows, VMware}

// names are the beginnings of the iSCSI names that initiators give themselves.
var names = []struct {
	begins  string
	profile Profile
	whose   string
}{
	{"iqn.2026-11.storage.gemel:node.", Linux, "a worker with Gemel's node plugin"},
	{"iqn.1993-08.org.debian:", Linux, "open-iscsi of Debian"},
	{"iqn.1994-05.com.redhat:", Linux, "open-iscsi of the Red Hat family"},
	{"iqn.1996-04.de.suse:", Linux, "open-iscsi of SUSE"},
	{"iqn.2004-10.com.ubuntu:", Linux, "open-iscsi of Ubuntu"},
	{"iqn.2016-04.com.open-iscsi:", Linux, "open-iscsi"},
	{"iqn.2008-11.org.linux-kvm:", QEMU, "QEMU"},
	{"iqn.1991-05.com.microsoft:", Windows, "the initiator of Windows"},
	{"iqn.1998-01.com.vmware:", VMware, "the initiator of ESXi"},
}

// Of recognises a host by its iSCSI name, and says by what. A name that nobody's default begins
// with is taken for Linux, which is what hosts got before there were profiles.
func Of(iqn string) (p Profile, why string) {
	iqn = strings.ToLower(iqn)
	for _, n := range names {
		// QEMU without a name and a UUID of the machine leaves out what follows.
		if strings.HasPrefix(iqn, n.begins) || iqn == strings.TrimSuffix(n.begins, ":") {
			return n.profile, "the iSCSI name is one of " + n.whose
		}
	}
	return Linux, "the iSCSI name is not one that a known initiator gives itself: set spec.profile if the host is not Linux"
}

// Effective is the profile that a person has set, or else the recognised one.
func Effective(set Profile, iqn string) (p Profile, why string) {
	if set != "" && set != Auto {
		return set, "spec.profile"
	}
	return Of(iqn)
}
