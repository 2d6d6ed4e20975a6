// Command template boots the lab's disk once and saves the machine, for the tests to clone:
// template FOLDER.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/kernel/vm"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: template FOLDER")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := (vm.Lab{Dir: os.Args[1]}).SaveTemplate(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "template:", err)
		os.Exit(1)
	}
}
