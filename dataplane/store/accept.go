package store

import (
	"github.com/gemel-storage/gemel/dataplane/sums"
)

// acceptStep is how much is read at once where the caller gives no buffer, in bytes.
const acceptStep = 256 << 10

// Accept accepts blocks whose checksums were lost with the content that they have: for a node
// that has no peer to ask. Blocks that do not match a known checksum, or that cannot be read,
// stay unchanged and are returned. The range must be of whole blocks; otherwise ErrRange.
func (f *File) Accept(off, length int64) (lost []Range, err error) {
	if err := f.wholeOnly("accept", off, length); err != nil || f.obj == nil {
		return nil, err
	}
	buf := make([]byte, min(acceptStep, length))
	for length > 0 {
		p := buf[:min(acceptStep, length)]
		err := f.eachReadable(p, off, func(p []byte, off int64, readable bool) error {
			if !readable {
				lost = addRange(lost, off, int64(len(p)))
				return nil
			}
			bad, err := f.acceptBlocks(p, off)
			for _, r := range bad {
				lost = addRange(lost, r.Off, r.Len)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		off, length = off+int64(len(p)), length-int64(len(p))
	}
	return lost, nil
}

func (f *File) acceptBlocks(p []byte, off int64) (bad []Range, err error) {
	o := f.obj
	faults, err := o.sums.Check(off/sumBlock, p)
	if err != nil {
		return nil, f.sumsError("accept", err)
	}
	for _, x := range faults {
		at := x.Block*sumBlock - off
		block := p[at:min(at+sumBlock, int64(len(p)))]
		if x.Want != sums.Unknown && !o.accepts(x) {
			bad = addRange(bad, off+at, int64(len(block)))
			continue
		}
		if err := o.sums.Put(x.Block, block); err != nil {
			return nil, f.sumsError("accept", err)
		}
		f.s.sums.settled.Add(1)
	}
	o.doubt.clear(off/sumBlock, sums.Blocks(int64(len(p))))
	return bad, nil
}

// AcceptEqual is for blocks of a copy whose checksums are unknown. If equal says that the copy
// has the same content as the other copy, which was checked there, the blocks get checksums.
// Otherwise nothing proves that they are good, and they are marked as lost, as SetBad does.
func (f *File) AcceptEqual(blocks []Range, equal func() (bool, error)) (bool, error) {
	for _, r := range blocks {
		lost, err := f.Accept(r.Off, r.Len)
		if err != nil || len(lost) > 0 {
			return false, err
		}
	}
	same, err := equal()
	if err != nil || same {
		return same, err
	}
	for _, r := range blocks {
		if err := f.SetBad(r.Off, r.Len); err != nil {
			return false, err
		}
	}
	return false, nil
}
