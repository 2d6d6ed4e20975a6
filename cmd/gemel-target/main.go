// Command gemel-target is one node of a dual-node iSCSI target.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gemel-storage/gemel/dataplane/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(app.Main(ctx, os.Args[1:], os.Stderr))
}
