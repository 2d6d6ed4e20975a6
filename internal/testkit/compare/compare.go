// Package compare compares the stores of two nodes that are stopped, byte by byte.
package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Folders of a state directory that hold images.
var Folders = []string{"volumes/default/luns", "volumes/default/snapshots"}

// Image is the verdict on one image.
type Image struct {
	Name      string `json:"name"` // folder and file, below the state directory
	Size      int64  `json:"size_bytes"`
	Compared  int64  `json:"compared_bytes"` // the rest is a hole on both nodes
	Identical bool   `json:"identical"`
	Reason    string `json:"reason,omitempty"` // why not
}

// Images lists the images of a state directory.
func Images(state string) ([]string, error) {
	var out []string
	for _, f := range Folders {
		entries, err := os.ReadDir(filepath.Join(state, f))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".img") { // a mark of the store's lies beside them
				out = append(out, filepath.Join(f, e.Name()))
			}
		}
	}
	return out, nil
}

// Stores compares all images of two state directories. progress is called with the number of bytes
// compared. The error is that of the comparison itself; a difference is none, see Identical.
func Stores(ctx context.Context, a, b string, progress func(bytes int64)) ([]Image, error) {
	in := [2]map[string]bool{}
	var names []string
	for i, dir := range []string{a, b} {
		list, err := Images(dir)
		if err != nil {
			return nil, err
		}
		in[i] = map[string]bool{}
		for _, n := range list {
			in[i][n] = true
		}
		names = append(names, list...)
	}
	slices.Sort(names)
	var out []Image
	for _, n := range slices.Compact(names) {
		if !in[0][n] || !in[1][n] {
			out = append(out, Image{Name: n, Reason: "only one node has it"})
			continue
		}
		im, err := files(ctx, filepath.Join(a, n), filepath.Join(b, n), progress)
		if err != nil {
			return out, err
		}
		im.Name = n
		out = append(out, im)
	}
	return out, nil
}

// Identical is true if there is something to compare and all of it is equal.
func Identical(list []Image) bool {
	for _, im := range list {
		if !im.Identical {
			return false
		}
	}
	return len(list) > 0
}

const chunk = 1 << 20

func files(ctx context.Context, a, b string, progress func(int64)) (im Image, err error) {
	var f [2]*os.File
	var size [2]int64
	for i, p := range []string{a, b} {
		if f[i], err = os.Open(p); err != nil {
			return im, err
		}
		defer f[i].Close()
		st, err := f[i].Stat()
		if err != nil {
			return im, err
		}
		size[i] = st.Size()
	}
	im.Size = size[0]
	if size[0] != size[1] {
		im.Reason = fmt.Sprintf("sizes differ: %d and %d bytes", size[0], size[1])
		return im, nil
	}
	var buf [2][]byte
	for i := range buf {
		buf[i] = make([]byte, chunk)
	}
	for at := int64(0); ; {
		if err := context.Cause(ctx); err != nil {
			return im, err
		}
		if at, err = nextData(f, at, im.Size); err != nil {
			return im, err
		}
		if at >= im.Size {
			im.Identical = true
			return im, nil
		}
		n := min(chunk, im.Size-at)
		for i := range f {
			// Holes read as zeroes, so a hole here and zeroes there are equal.
			if _, err := io.ReadFull(io.NewSectionReader(f[i], at, n), buf[i][:n]); err != nil {
				return im, fmt.Errorf("%s at %d: %w", f[i].Name(), at, err)
			}
		}
		if !bytes.Equal(buf[0][:n], buf[1][:n]) {
			for k := range n {
				if buf[0][k] != buf[1][k] {
					im.Reason = fmt.Sprintf("byte %d differs: %#02x and %#02x", at+k, buf[0][k], buf[1][k])
					return im, nil
				}
			}
		}
		im.Compared += n
		progress(n)
		at += n
	}
}

// nextData is the first offset from at on that either file may hold data at.
func nextData(f [2]*os.File, at, size int64) (int64, error) {
	next := size
	for i := range f {
		off, err := unix.Seek(int(f[i].Fd()), at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			off = size
		case err != nil:
			return at, nil // the filesystem cannot tell: read everything
		}
		next = min(next, off)
	}
	return next, nil
}

// Corrupt flips one byte of the first image of a state directory that holds data, and says which: a
// proof that a comparison can fail.
func Corrupt(state string) (string, error) {
	list, err := Images(state)
	if err != nil {
		return "", err
	}
	for _, n := range list {
		f, err := os.OpenFile(filepath.Join(state, n), os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		at, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
		if err != nil {
			f.Close()
			continue
		}
		at += 4095
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		if err == nil {
			b[0] ^= 0x20
			_, err = f.WriteAt(b[:], at)
		}
		return fmt.Sprintf("byte %d of %s", at, n), errors.Join(err, f.Close())
	}
	return "", errors.New("no image holds data")
}
