package pair

// What commands and changes wait for, as Waiting names it: text for people.
const (
	WaitsDecision = "a decision on the members, the owner or the path"
	WaitsRange    = "another command on the same range"
	WaitsMirror   = "the peer's answer to a mirrored write"
	WaitsFlush    = "a flush on both nodes"
	WaitsHeal     = "the peer's copy of a damaged block"
	WaitsOwner    = "the other node, which owns the LUN"
	WaitsStore    = "this node's store"
	WaitsAnswer   = "the lease, or the flush after the peer was excluded"
	WaitsEntry    = "a log entry"
	WaitsPeer     = "this node's store, on behalf of the peer"
)

// Waiting counts what is under way by what it waits for: commands of hosts, the changes that they
// and others have proposed, and work for the peer. Copies, scrubs and checkpoints are not counted:
// no host waits for them.
func (m *Machine) Waiting() map[string]int {
	by := map[string]int{}
	for o := range m.eachOp() {
		if o.internal() {
			continue
		}
		switch o.stage {
		case stNew, stHeld:
			by[WaitsDecision]++
		case stHealAsk:
			by[WaitsHeal]++
		case stLock, stHealLock:
			by[WaitsRange]++
		case stMirror:
			by[WaitsMirror]++
		case stRepair:
			if m.ops[o.id] != nil {
				by[WaitsMirror]++
			} else {
				by[WaitsStore]++
			}
		case stBoth:
			by[WaitsFlush]++
		case stForward:
			by[WaitsOwner]++
		case stCompare, stIntent, stStore, stHealWrite:
			by[WaitsStore]++
		case stAnswer:
			by[WaitsAnswer]++
		}
	}
	if k := len(m.log.open); k > 0 {
		by[WaitsEntry] = k
	}
	if m.applying > 0 {
		by[WaitsPeer] = m.applying
	}
	return by
}
