package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/gemel-storage/gemel/internal/fd"
)

// Failed is the error that made the store untrusted in this process, nil while there is none (R12).
func (s *Store) Failed() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// FailedC is closed when the store fails.
func (s *Store) FailedC() <-chan struct{} { return s.failC }

// fail makes the store untrusted, once. The marker file makes it stay so after a restart as far as
// the disk still takes it: pages whose writeback failed are dropped from the cache, so a restarted
// process would read old data without any sign that they are old.
func (s *Store) fail(cause error) { s.end(cause, false) }

// end is fail, or, if it is known what the store holds, the end of its use in this process only.
func (s *Store) end(cause error, known bool) {
	s.once.Do(func() {
		err := fmt.Errorf("%w: %w", ErrFailed, cause)
		s.failed.Store(&err)
		close(s.failC)
		s.log.Error("the store failed; nothing more is written to it", "dir", s.dir, "err", cause)
		if known {
			return
		}
		if err := writeFileDurably(filepath.Join(s.dir, untrustedFile), []byte(cause.Error()+"\n")); err != nil {
			s.log.Error("cannot mark the failed store as untrusted", "dir", s.dir, "err", err)
		}
	})
}

// Untrusted returns why an earlier process distrusted this store, "" if none did. Such a store
// needs a full resync, after which the caller calls Trust.
func (s *Store) Untrusted() (string, error) {
	raw, err := readSmall(filepath.Join(s.dir, untrustedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil && !errors.Is(err, errTooLong) {
		return "", fmt.Errorf("untrusted marker: %w", err)
	}
	return parseUntrusted(raw), nil
}

// maxReason bounds the text of a marker, in bytes.
const maxReason = 1 << 10

// parseUntrusted makes a line of what the marker holds, which a failing disk may have garbled. It
// is never empty: the marker counts by being there.
func parseUntrusted(raw []byte) string {
	text := printable(strings.ToValidUTF8(string(raw[:min(len(raw), maxReason)]), "?"))
	if text = strings.TrimSpace(text); text == "" {
		return "an earlier failure"
	}
	return text
}

// printable is a text without line ends and whatever else cannot be printed.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// Trust removes the mark of an earlier process's failure. A failure in this process stays.
func (s *Store) Trust() error {
	if err := s.Failed(); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(s.dir, untrustedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("untrusted marker: %w", err)
	}
	return fd.SyncDir(s.dir)
}

// fault asks the hook, if there is one.
func (s *Store) fault(op, path string, off, length int64) error {
	if s.faults == nil {
		return nil
	}
	return s.faults(op, path, off, length)
}
