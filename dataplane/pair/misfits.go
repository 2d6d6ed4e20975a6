package pair

// Files that are not what the metadata says (R12): the objects of this node that it can neither
// serve nor be a source of, while the rest of its store is as good as it was. The install of a
// resync makes them again, and names them in its answer, so that they are copied whole, and no more
// than they.

// Misfits sets the text of which files still differ from the metadata, "" if none does: some were
// created again, or their objects were deleted.
func (m *Machine) Misfits(now int64, what string) {
	if m.reason == m.cfg.Misfits {
		m.reason = what
	}
	m.cfg.Misfits = what
	m.settle(now)
}
