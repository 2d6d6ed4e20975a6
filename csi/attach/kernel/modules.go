package kernel

import (
	"bufio"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MissingModules names the modules that the worker's kernel cannot have: they are neither there,
// nor to be loaded, nor did those who built this kernel ask for them. One that is only not
// installed is not among them: Check tells that, with what fixes it.
func MissingModules(hostProc string) ([]string, error) {
	w, err := findWorker(hostProc)
	if err != nil {
		return nil, err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	return missingModules(w, unix.ByteSliceToString(u.Release[:])), nil
}

func missingModules(w worker, release string) (out []string) {
	known := map[string]bool{}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		eachLine(w.path("/lib/modules", release, list), func(line string) {
			file, _, _ := strings.Cut(line, ":")
			if name, _, ok := strings.Cut(filepath.Base(file), ".ko"); ok {
				known[strings.ReplaceAll(name, "-", "_")] = true
			}
		})
	}
	for _, config := range []string{filepath.Join(filepath.Dir(w.proc), "config.gz"), w.path("/boot/config-" + release)} {
		eachLine(config, func(line string) {
			name, value, _ := strings.Cut(line, "=")
			if name, ok := strings.CutPrefix(name, "CONFIG_"); ok && (value == "y" || value == "m") {
				known[strings.ToLower(name)] = true
			}
		})
	}
	for _, m := range modules {
		if _, err := os.Stat(w.path("/sys/module", m)); err != nil && !known[m] {
			out = append(out, m)
		}
	}
	return out
}

// eachLine reads a file, which may be compressed. One that cannot be read says nothing.
func eachLine(path string, f func(string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	var r io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(file); err != nil {
			return
		}
	}
	for s := bufio.NewScanner(r); s.Scan(); {
		f(s.Text())
	}
}
