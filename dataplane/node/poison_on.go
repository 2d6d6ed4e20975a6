//go:build gemel_poison

package node

import (
	"bytes"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// poison crashes the process at a write that begins with these words. Test binaries have it, so
// that a test can show what a defect in the execution of commands would do.
func poison(s *scsi.Op) {
	if s.Kind == scsi.OpWrite && bytes.HasPrefix(s.Data, []byte("gemel: crash here")) {
		panic("a command that crashes the process that executes it")
	}
}
