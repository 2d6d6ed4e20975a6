//go:build !gemel_poison

package node

import "github.com/gemel-storage/gemel/dataplane/scsi"

// poison does nothing: only tests are built with commands that crash the process.
func poison(*scsi.Op) {}
