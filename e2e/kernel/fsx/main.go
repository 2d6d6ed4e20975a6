// Command fsx runs in a guest: it applies the operations of programs to one file of a filesystem
// (write, read, truncate, map, punch holes, zero ranges, sync, read again from the device) and
// compares each byte with what it remembers, until SIGTERM; then it compares the whole.
//
//	fsx PATH SEED
//
// It prints how far it is, and ends with 1 and its last operations when a byte is wrong or the file
// fails.
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// each so many operations a line is printed: who waits for progress counts lines.
const each = 100

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: fsx PATH SEED")
	}
	seed, err := strconv.ParseUint(os.Args[2], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	if err := run(os.Args[1], seed, end); err != nil {
		log.Fatal(err)
	}
}

func run(path string, seed uint64, end <-chan os.Signal) error {
	fmt.Println("seed", seed)
	x, err := open(path, seed)
	if err != nil {
		return err
	}
	defer x.f.Close()
	for n := 1; ; n++ {
		select {
		case <-end:
			return x.whole()
		default:
		}
		if err := x.step(); err != nil {
			return err
		}
		if n%each == 0 {
			fmt.Println("operations", n)
		}
	}
}
