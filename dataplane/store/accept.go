package store

import (
	"github.com/gemel-storage/gemel/dataplane/sums"
)

// acceptStep is how much is read at once where the caller gives no buffer, in bytes.
const acceptStep = 256 << 10

// Accept takes blocks as they are of which nothing is known any more, since their checksums were lost: for a node that has no peer to
// ask. Those whose checksums say that they are not what was written, or cannot be read, stay as they are and are returned. It
// takes whole blocks only; ErrRange.
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

// AcceptEqual is for blocks of a copy that have no known checksums: if equal says that the copy is what the other one has, which was
// checked there, they get them. Else nothing vouches for them, and they are marked as SetBad does.
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
