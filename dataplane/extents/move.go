package extents

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// Move takes an extent to the volume of a number, while hosts use it, and returns when it lies
// there durably. It stays where it was if an error is returned: ErrMoving, ErrNoVolume,
// ErrTargetFull, ErrSpoilt, that of ctx, or what an image or the map failed with. An extent with a
// block that cannot be read does not move.
//
//  1. What an aborted move has left at the new place is punched: it would show through the holes of
//     the extent. From now on changes go to both places.
//  2. Pieces are copied, each while hosts wait for what is in memory.
//  3. The new image is flushed. Both places have every block that a host has flushed: one that was
//     flushed before has been copied, and later flushes flush both.
//  4. The map says so, durably, while hosts wait. Then the old place is punched.
//
// A crash leaves a copy at a place that the map does not name, which Sweep punches.
func (s *Spread) Move(ctx context.Context, extent int64, to uint8) error {
	return s.MoveLike(ctx, extent, to, nil)
}

// MoveLike is Move of an extent that is nearly what lies at the new place already, of another LUN:
// like has the new place share that, with whatever content, in step 1. Only blocks that differ are
// written then, and the rest stays shared. An error of like makes it a Move.
func (s *Spread) MoveLike(ctx context.Context, extent int64, to uint8, like func() error) error {
	if s.images[to] == nil { // there is no number 0
		return fmt.Errorf("move extent %d to volume %d: %w", extent, to, ErrNoVolume)
	}
	if extent < 0 || extent >= Extents(s.size.Load()) {
		return fmt.Errorf("move extent %d of %d: %w", extent, Extents(s.size.Load()), ErrRange)
	}
	mv, err := s.begin(extent, to, like)
	if mv == nil || err != nil {
		return err
	}
	if err = s.copy(ctx, extent, mv); err == nil {
		err = ctx.Err() // a flush of a busy disk lasts seconds, and a stop waits for the move
	}
	if err == nil {
		err = s.images[to].Sync()
	}
	if err == nil {
		err = ctx.Err() // that of the map lasts as long
	}
	if err == nil {
		err = s.finish(extent, mv)
	}
	if err == nil {
		return nil
	}
	s.abort(extent, mv)
	return fmt.Errorf("move extent %d to volume %d: %w", extent, to, err)
}

// begin is step 1. It returns nil if the extent lies there already.
func (s *Spread) begin(extent int64, to uint8, like func() error) (*move, error) {
	b := s.locks.of(extent)
	b.take()
	defer b.give()
	mv := &move{from: s.m.At(extent), to: to}
	switch {
	case b.moves[extent] != nil:
		return nil, fmt.Errorf("extent %d: %w", extent, ErrMoving)
	case mv.from == to:
		return nil, nil
	}
	off, length := s.span(extent)
	if err := s.images[to].Punch(off, length); err != nil {
		return nil, err
	}
	if like != nil {
		if mv.like = like() == nil; !mv.like { // a part of it may be there
			if err := s.images[to].Punch(off, length); err != nil {
				return nil, err
			}
		}
	}
	if b.moves == nil {
		b.moves = map[int64]*move{}
	}
	b.moves[extent] = mv
	return mv, nil
}

// copy is step 2.
func (s *Spread) copy(ctx context.Context, extent int64, mv *move) error {
	buf, have := make([]byte, piece), []byte(nil)
	if mv.like {
		have = make([]byte, piece)
	}
	off, length := s.span(extent)
	for end := off + length; off < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.copyPiece(extent, mv, buf[:min(piece, end-off)], have, off)
		if err != nil {
			return err
		}
		if off += n; s.cfg.Pace != nil {
			if err := s.cfg.Pace(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyPiece copies what p holds at most, or the hole at off; have is for what the new place has, if
// that is like the old one. Hosts wait while it is written, into the page cache, and not while it
// is read from the disk: what was read counts only if nothing of the extent has changed since, and
// is read again otherwise.
func (s *Spread) copyPiece(extent int64, mv *move, p, have []byte, off int64) (int64, error) {
	changes := mv.changes.Load()
	run, data, err := s.readPiece(mv, p, have, off)
	b := s.locks.of(extent)
	b.take()
	defer b.give()
	if err := mv.failed(); err != nil {
		return 0, err
	}
	if err != nil || mv.changes.Load() != changes { // those under way have ended, and count now
		if run, data, err = s.readPiece(mv, p, have, off); err != nil {
			return 0, err
		}
	}
	switch to := s.images[mv.to]; {
	case !data && mv.like:
		return run, to.Punch(off, run)
	case !data:
		return run, nil
	case mv.like:
		return run, s.putDifferences(to, p[:run], have, off)
	default:
		return run, s.put(to, p[:run], off)
	}
}

// sameBlock is the unit in which a new place is compared, in bytes: that of filesystems.
const sameBlock = 4096

// putDifferences writes the blocks of p that are not what is there.
func (s *Spread) putDifferences(to Image, p, have []byte, off int64) error {
	for at := 0; at < len(p); {
		end := at
		for end < len(p) && !bytes.Equal(p[end:min(end+sameBlock, len(p))], have[end:min(end+sameBlock, len(p))]) {
			end = min(end+sameBlock, len(p))
		}
		if end == at {
			at += sameBlock
			continue
		}
		if err := s.put(to, p[at:end], off+int64(at)); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// readPiece reads the data at off, or says how long the hole is; and what the new place has there,
// if that is like it.
func (s *Spread) readPiece(mv *move, p, have []byte, off int64) (run int64, data bool, err error) {
	from := s.images[mv.from]
	run, data, err = from.Data(off, int64(len(p)))
	switch {
	case err != nil:
	case run <= 0:
		err = io.ErrUnexpectedEOF
	case data:
		if err = from.ReadAt(p[:run], off); err == nil && mv.like {
			err = s.images[mv.to].ReadAt(have[:run], off)
		}
	}
	return run, data, err
}

func (s *Spread) put(to Image, p []byte, off int64) error {
	err := to.WriteAt(p, off)
	if err != nil && s.noSpace(err) {
		return fmt.Errorf("%w: %w", ErrTargetFull, err)
	}
	return err
}

// Adopt says that an extent lies in the volume of a number, if nothing of it is written yet: a copy
// has it where its source has it.
func (s *Spread) Adopt(extent int64, volume uint8) error {
	b := s.locks.of(extent)
	b.take()
	defer b.give()
	at := s.m.At(extent)
	if at == volume || s.images[volume] == nil || b.moves[extent] != nil {
		return nil
	}
	off, length := s.span(extent)
	if run, data, err := s.images[at].Data(off, length); err != nil || data || run < length {
		return err
	}
	if err := s.images[volume].Punch(off, length); err != nil {
		return err
	}
	return s.m.Set([]int64{extent}, volume)
}

// finish is step 4. A crash after the map was written, and before the old place was punched, leaves
// a copy that nothing names.
func (s *Spread) finish(extent int64, mv *move) error {
	b := s.locks.of(extent)
	b.take()
	defer b.give()
	if err := mv.failed(); err != nil {
		return err
	}
	if err := s.m.Set([]int64{extent}, mv.to); err != nil {
		return err
	}
	delete(b.moves, extent)
	_ = s.punch(extent, mv.from) // the space is all that is lost if it fails, until the next Sweep
	return nil
}

// abort leaves the extent where it was.
func (s *Spread) abort(extent int64, mv *move) {
	b := s.locks.of(extent)
	b.take()
	defer b.give()
	delete(b.moves, extent)
	_ = s.punch(extent, mv.to)
}

// punch frees a place of an extent, if the map does not name it. The lock of the extent is held,
// alone.
func (s *Spread) punch(extent int64, volume uint8) error {
	if s.m.At(extent) == volume || s.m.Failed() != nil {
		return nil
	}
	off, length := s.span(extent)
	return s.images[volume].Punch(off, length)
}

// Sweep punches what crashes have left at places that the map does not name, and returns how many
// there were. It is called while hosts use the LUN.
func (s *Spread) Sweep(ctx context.Context) (swept int, err error) {
	for _, v := range s.named {
		for e := range Extents(s.size.Load()) {
			if err := ctx.Err(); err != nil {
				return swept, err
			}
			if s.m.At(e) == v {
				continue
			}
			n, err := s.sweep(e, v)
			if swept += n; err != nil {
				return swept, fmt.Errorf("sweep extent %d of volume %d: %w", e, v, err)
			}
		}
	}
	return swept, nil
}

func (s *Spread) sweep(extent int64, v uint8) (int, error) {
	b := s.locks.of(extent)
	b.take()
	defer b.give()
	if mv := b.moves[extent]; mv != nil && mv.to == v {
		return 0, nil
	}
	off, length := s.span(extent)
	for at := off; at < off+length; {
		run, data, err := s.images[v].Data(at, off+length-at)
		if err != nil {
			return 0, err
		}
		if data {
			return 1, s.punch(extent, v)
		}
		if run <= 0 {
			return 0, io.ErrUnexpectedEOF
		}
		at += run
	}
	return 0, nil
}
