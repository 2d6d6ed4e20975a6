package kernel

import (
	"fmt"
	"regexp"
	"strings"
)

// sample is a LUN as multipath's lists see it.
var sample = map[string]string{"devnode": "sda", "wwid": "3602474d0000000000000000000000000", "protocol": "scsi:iscsi"}

// verifyBlacklist says which entry keeps multipath from our LUNs. An exception of the same kind
// lifts an entry (multipath.conf(5)).
func verifyBlacklist(root *section) (out []Lack) {
	for _, kind := range []string{"devnode", "wwid", "protocol", "device"} {
		entry, hit := listed(root, "blacklist", kind)
		if !hit {
			continue
		}
		if _, excepted := listed(root, "blacklist_exceptions", kind); excepted {
			continue
		}
		fix := fmt.Sprintf("add blacklist_exceptions { %s ... } for vendor %q, or remove the entry, in /etc/multipath.conf, then multipathd reconfigure", kind, vendor)
		if kind == "wwid" {
			fix = `add blacklist_exceptions { wwid "^3602474d" } to /etc/multipath.conf, then multipathd reconfigure`
		}
		out = append(out, Lack{fmt.Sprintf("blacklist { %s %s } keeps multipath from the LUNs", kind, entry), fix})
	}
	return out
}

// listed finds an entry of a list that a LUN of ours matches.
func listed(root *section, list, kind string) (entry string, ok bool) {
	for _, l := range root.all(list) {
		if kind == "device" {
			for _, d := range l.all("device") {
				v, hasVendor := d.get("vendor")
				p, hasProduct := d.get("product")
				if (hasVendor || hasProduct) && (!hasVendor || matches(v, vendor)) && (!hasProduct || matches(p, product)) {
					return fmt.Sprintf("{ vendor %q product %q }", v, p), true
				}
			}
			continue
		}
		for _, s := range l.settings {
			if s.key == kind && matches(s.value, sample[kind]) {
				return fmt.Sprintf("%q", s.value), true
			}
		}
	}
	return "", false
}

// matches: multipath takes POSIX expressions, inverted by a leading exclamation mark. One that we
// cannot read matches nothing.
func matches(expr, s string) bool {
	expr, inverted := strings.CutPrefix(expr, "!")
	re, err := regexp.CompilePOSIX(expr)
	return err == nil && re.MatchString(s) != inverted
}
