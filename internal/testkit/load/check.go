package load

import (
	"context"
	"fmt"
	"io"

	"github.com/gemel-storage/gemel/internal/testkit/ledger"
)

// Finding is one block that lost an acknowledged write.
type Finding struct {
	Stream string
	Block  int
	What   string
}

func (f Finding) String() string { return fmt.Sprintf("%s, block %d: %s", f.Stream, f.Block, f.What) }

// chunk is how many blocks are read at once.
const chunk = 256

// each reads all blocks of some regions, in order.
func each(ctx context.Context, r io.ReaderAt, regions []Region, progress func(blocks int), f func(block int, content []byte)) error {
	buf := Aligned(chunk * ledger.BlockSize)
	block := 0
	for _, reg := range regions {
		for i := 0; i < reg.Blocks; i += chunk {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n := min(chunk, reg.Blocks-i)
			p := buf[:n*ledger.BlockSize]
			off := reg.Off + int64(i)*ledger.BlockSize
			if got, err := r.ReadAt(p, off); err != nil || got != len(p) {
				return fmt.Errorf("read of %d bytes at %d: %d bytes: %w", len(p), off, got, err)
			}
			for k := range n {
				f(block, p[k*ledger.BlockSize:(k+1)*ledger.BlockSize])
				block++
			}
			progress(n)
		}
	}
	return nil
}

// Verify reads every block back and returns those that lost an acknowledged write. progress is
// called with the number of blocks read.
func (s *Stream) Verify(ctx context.Context, r io.ReaderAt, progress func(blocks int)) ([]Finding, error) {
	var lost []Finding
	err := each(ctx, r, s.Regions(), progress, func(block int, content []byte) {
		if what := s.Ledger.Check(block, content); what != "" {
			lost = append(lost, Finding{s.Name, block, what})
		}
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", s.Name, err)
	}
	return lost, err
}

// VerifyMoment reads a snapshot of the target, or a clone of that, and judges it by what was
// recorded while it was made.
func (s *Stream) VerifyMoment(ctx context.Context, r io.ReaderAt, m *ledger.Moment, regions []Region, progress func(blocks int)) error {
	var seen []uint64
	var bad error
	err := each(ctx, r, regions, progress, func(block int, content []byte) {
		seq, fault := ledger.Parse(content, s.Ledger.Volume, uint64(block))
		if fault != "" && fault != "empty" && bad == nil {
			bad = fmt.Errorf("%s: block %d of the snapshot is %s", s.Name, block, fault)
		}
		seen = append(seen, seq)
	})
	if err != nil || bad != nil {
		return fmt.Errorf("%s: %w", s.Name, firstOf(err, bad))
	}
	if err := m.Check(seen); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}
