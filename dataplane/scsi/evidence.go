package scsi

// A session does not say that its host can use the path: hosts log in, look around and may still
// never add the path to their multipath device. What counts is what the multipath layer does: it
// asks for the target port groups, checks the path and sends reads and writes. Discovery commands
// (INQUIRY, REPORT LUNS, READ CAPACITY, MODE SENSE and the like) do not count.

// enoughCommands is how many of TEST UNIT READY, READ and WRITE show that a host uses a path. One
// alone may be a probe.
const enoughCommands = 2

// UsesPath is when the command arrived by which the host has shown that its multipath layer knows
// this path, as Task.Arrived has it; 0: not yet. That command is the first REPORT TARGET PORT
// GROUPS that was answered, or the second one of TEST UNIT READY, READ and WRITE (WRITE AND VERIFY
// included), on any unit. It does not change any more while the nexus lives.
func (n *Nexus) UsesPath() int64 { return n.usesPath.Load() }

// noteCommand counts a command that has the flag pathEvidence. Every READ and WRITE passes here:
// once the path is shown, it is one atomic load.
func (n *Nexus) noteCommand(t *Task) {
	if n.usesPath.Load() == 0 && n.evidence.Add(1) >= enoughCommands {
		n.showPath(t)
	}
}

// showPath notes that t shows the use of the path, if no command has shown it before.
func (n *Nexus) showPath(t *Task) { n.usesPath.CompareAndSwap(0, t.Arrived) }
