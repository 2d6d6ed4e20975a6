package holder

import "os"

// maxLog bounds the log file, in bytes: a holder may run for years.
const maxLog = 4 << 20

// Log writes a holder's log lines to a file, which is truncated when it is full. The file must be
// open for appending.
type Log struct {
	File *os.File
	n    int64
}

// Write implements io.Writer; slog's handlers call it for one line at a time.
func (l *Log) Write(b []byte) (int, error) {
	if l.n += int64(len(b)); l.n > maxLog {
		l.n = int64(len(b))
		_ = l.File.Truncate(0) // fails if it is not a regular file, which needs no bound
	}
	return l.File.Write(b)
}
