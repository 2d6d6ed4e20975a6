// Package exits names the exit codes of gemel-target and leaves its last words where what runs it
// looks for them.
package exits

import (
	"fmt"
	"os"
	"unicode/utf8"
)

// Exit codes of gemel-target. A Go program that panics ends with 2.
const (
	OK     = 0 // an orderly stop (SIGTERM, SIGINT), or a command that did what it was asked to
	Failed = 1 // it did not start, an orderly stop did not end in time, or a command failed: the message names what is wrong
	Left   = 3 // the node serves nothing any more in this life: start it again
)

// MessageFile is where Kubernetes reads a container's last words unless its terminationMessagePath
// says otherwise. The kubelet makes the file; elsewhere there is none.
const MessageFile = "/dev/termination-log"

// MaxMessage bounds last words, in bytes: Kubernetes keeps no more of them.
const MaxMessage = 4096

// LastWords writes a text to path, cut at MaxMessage bytes, if there is a regular file of that
// name: none is made. An empty path is nowhere.
func LastWords(path, text string) error {
	if path == "" {
		return nil
	}
	st, err := os.Stat(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("termination message: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("termination message: %w", err)
	}
	if _, err := f.WriteString(cut(text)); err != nil {
		_ = f.Close()
		return fmt.Errorf("termination message: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("termination message: %w", err)
	}
	return nil
}

// cut keeps whole characters.
func cut(text string) string {
	if len(text) <= MaxMessage {
		return text
	}
	n := MaxMessage
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
