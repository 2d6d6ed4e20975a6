package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// timers of a session. They go with the target's lease T and age limit D (1 s): a silent loss is
// declared no sooner than 2·D after the last answer, so that a write that is retried on the other
// path is not still waiting at the silent node with an intact session.
const (
	noopInterval  = 1 // s, between a session's last sign of life and a ping
	noopTimeout   = 1 // s, until an unanswered ping ends the connection
	replacement   = 0 // s, until the commands of a session without a connection are given back to multipath (docs/decisions/0060)
	loginTimeout  = 5 // s
	loginAttempts = 1 // before iscsiadm gives up; once logged in, iscsid tries for ever
)

// keyCount is the number of sessions that a login through a record makes. iscsiadm counts those
// that are there and makes the others, each with an ISID of its own; nothing else reads the number,
// so that a change does not concern sessions that are there (usr/session_mgmt.c of open-iscsi).
const keyCount = "node.session.nr_sessions"

// nodeRecord is one portal in open-iscsi's node database: everything that iscsid needs to log in
// and to log in again. Never printed.
type nodeRecord struct {
	initiator, target iqn
	portal            netip.AddrPort
	auth, mutual      *attach.CHAP
	sessions          int // that a login makes, with those that are there; 0: one
}

// String hides the secrets.
func (n nodeRecord) String() string   { return fmt.Sprintf("node %s at %s", n.target, n.portal) }
func (n nodeRecord) GoString() string { return n.String() }

// render writes the record as iscsiadm does (usr/idbm.c of open-iscsi): one "key = value" a line.
// Keys that are not named have open-iscsi's built-in value. The portal group's tag is unknown: the
// target says it at login, and a wrong one would be refused.
func (n nodeRecord) render() []byte {
	var b strings.Builder
	b.WriteString("# BEGIN RECORD 2.1.8\n")
	line := func(key string, value any) { fmt.Fprintf(&b, "%s = %v\n", key, value) }
	line("node.name", n.target)
	line("node.tpgt", -1)
	line("node.startup", "manual") // after a reboot, nothing is there until a volume is staged
	line("node.leading_login", "No")
	ifaceLines(line, n.initiator)
	line("node.discovery_type", "static")
	line("node.session.initial_login_retry_max", loginAttempts)
	line("node.session.cmds_max", 128)
	line("node.session.queue_depth", 32)
	line(keyCount, max(n.sessions, 1))
	if n.auth != nil {
		line("node.session.auth.authmethod", "CHAP")
		line("node.session.auth.username", n.auth.User)
		line("node.session.auth.password", n.auth.Secret)
		if n.mutual != nil {
			line("node.session.auth.username_in", n.mutual.User)
			line("node.session.auth.password_in", n.mutual.Secret)
		}
	} else {
		line("node.session.auth.authmethod", "None")
	}
	line("node.session.timeo.replacement_timeout", replacement)
	line("node.session.iscsi.FastAbort", "Yes")
	line("node.session.iscsi.InitialR2T", "No")
	line("node.session.iscsi.ImmediateData", "Yes")
	line("node.session.iscsi.FirstBurstLength", 262144)
	line("node.session.iscsi.MaxBurstLength", 1048576)
	line("node.session.iscsi.DefaultTime2Retain", 0)
	line("node.session.iscsi.DefaultTime2Wait", 2)
	line("node.session.iscsi.MaxConnections", 1)
	line("node.session.iscsi.MaxOutstandingR2T", 1)
	line("node.session.iscsi.ERL", 0)
	line("node.session.scan", "manual") // a session shows nothing but the LUNs that were asked for
	line("node.session.reopen_max", 0)
	line("node.conn[0].address", n.portal.Addr())
	line("node.conn[0].port", n.portal.Port())
	line("node.conn[0].startup", "manual")
	line("node.conn[0].timeo.logout_timeout", 5)
	line("node.conn[0].timeo.login_timeout", loginTimeout)
	line("node.conn[0].timeo.auth_timeout", 15)
	line("node.conn[0].timeo.noop_out_interval", noopInterval)
	line("node.conn[0].timeo.noop_out_timeout", noopTimeout)
	line("node.conn[0].iscsi.MaxRecvDataSegmentLength", 262144)
	line("node.conn[0].iscsi.HeaderDigest", "None")
	line("node.conn[0].iscsi.DataDigest", "None")
	b.WriteString("# END RECORD\n")
	return []byte(b.String())
}

func ifaceLines(line func(string, any), initiator iqn) {
	line("iface.iscsi_ifacename", ifaceName)
	line("iface.transport_name", "tcp")
	line("iface.initiatorname", initiator)
}

// renderIface is the record of our interface: sessions made through it have our name, whatever the
// machine's own is. Machines cloned from one image share that.
func renderIface(initiator iqn) []byte {
	var b strings.Builder
	b.WriteString("# BEGIN RECORD 2.1.8\n")
	ifaceLines(func(key string, value any) { fmt.Fprintf(&b, "%s = %v\n", key, value) }, initiator)
	b.WriteString("# END RECORD\n")
	return []byte(b.String())
}

// sum compares records without keeping them.
func sum(content []byte) string {
	h := sha256.Sum256(content)
	return hex.EncodeToString(h[:])
}
