package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// Hosts that do what hosts may do and that others must not notice: they fence each other, reset
// LUNs, change mode pages, connect and say nothing. And LUNs that come and go.

const (
	fencers       = 3
	fencedLUN     = 8 << 20
	idleSockets   = 96 // more than a node keeps
	recreatedLUN  = 4 << 20
	prOutOpcode   = 0x5f
	prRegister    = 0x06 // REGISTER AND IGNORE EXISTING KEY, SPC-4 §6.16.2
	prPreempt     = 0x05 // PREEMPT AND ABORT
	prRegistrants = 0x05 // write exclusive, registrants only
	modeSelect6   = 0x15
	tmfLUNReset   = 5
)

func reservationOut(action byte, key, other uint64) (cdb, param []byte) {
	param = make([]byte, 24)
	binary.BigEndian.PutUint64(param, key)
	binary.BigEndian.PutUint64(param[8:], other)
	return []byte{prOutOpcode, action, prRegistrants, 0, 0, 0, 0, 0, byte(len(param)), 0}, param
}

// fence lets hosts fence each other over both paths, with resets and mode pages in between. What
// they are answered is of no account, they are in each other's way: the LUNs under test must be
// served as ever, and the log must continue.
func (r *rig) fence(d time.Duration, seed uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wg sync.WaitGroup
	for h := range fencers {
		m := r.fenced[h]
		for path := range m.Portals {
			rng := rand.New(rand.NewPCG(seed, uint64(10*h+path)))
			wg.Go(func() {
				for ctx.Err() == nil {
					s, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn,
						ISID: [6]byte{0x80, 0, 0, byte(h), 9, byte(path)}, Portal: m.Portals[path].Address,
						Timers: initiator.Timers{Dial: time.Second, Login: 2 * time.Second}})
					if err != nil {
						continue // the node is away, or the host is fenced
					}
					for ctx.Err() == nil && s.Err() == nil {
						r.fenceOnce(ctx, s, uint16(m.Lun), uint64(h+1), rng)
					}
					s.Close()
				}
			})
		}
	}
	wg.Wait()
}

func (r *rig) fenceOnce(ctx context.Context, s *initiator.Session, lun uint16, key uint64, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	var err error
	switch rng.IntN(5) {
	case 0:
		cdb, param := reservationOut(prRegister, 0, key)
		_, err = s.Execute(ctx, lun, cdb, param, nil)
	case 1:
		cdb, param := reservationOut(prPreempt, key, uint64(rng.IntN(fencers)+1))
		_, err = s.Execute(ctx, lun, cdb, param, nil)
	case 2:
		page := make([]byte, 4+12)
		page[4], page[5], page[6], page[8] = 0x0a, 0x0a, 0x02, byte(rng.IntN(2))<<3 // the control page's SWP
		_, err = s.Execute(ctx, lun, []byte{modeSelect6, 0x10, 0, 0, byte(len(page)), 0}, page, nil)
	case 3:
		_, err = s.TaskManagement(ctx, tmfLUNReset, lun)
	default:
		_, err = s.Execute(ctx, lun, cdb(opRead16, rng.Int64N(100)), nil, make([]byte, 4096))
	}
	if err == nil {
		r.rec.fences.Add(1)
	}
}

// idle connects to both nodes more often than they keep connections that have not logged in, and
// says nothing.
func (r *rig) idle(d time.Duration) {
	var open []net.Conn
	dialer := net.Dialer{Timeout: time.Second}
	end := time.Now().Add(d)
	for i := 0; i < 2*idleSockets && time.Now().Before(end); i++ {
		if c, err := dialer.Dial("tcp", r.pair.Portals()[i%2]); err == nil {
			open = append(open, c)
		}
	}
	time.Sleep(time.Until(end)) // the length of the fault
	for _, c := range open {
		_ = c.Close()
	}
}

// recreate makes a LUN, writes to it, deletes it, and makes another one under its uuid, which has
// to read as zero. It may be refused while other faults are at work.
func (r *rig) recreate(ctx context.Context) error {
	id := uuid.NewString()
	for round := range 2 {
		if err := r.createLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "again-" + id, SizeBytes: recreatedLUN}); err != nil {
			return fmt.Errorf("create, round %d: %w", round, err)
		}
		m, err := r.mapHost(ctx, id, "again")
		if err != nil {
			return fmt.Errorf("map: %w", err)
		}
		if err := r.useNew(ctx, m, uint64(round+1)<<32); err != nil {
			return err
		}
		err = r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
			_, err := c.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: m.HostIqn})
			if err == nil {
				_, err = c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: id})
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	r.rec.recreated.Add(1)
	return nil
}

// useNew reads a new LUN, which has never been written, and writes to it, values from mark on.
func (r *rig) useNew(ctx context.Context, m *targetv1.Mapping, mark uint64) (err error) {
	d, err := openDisk(ctx, lunCount+2, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	for _, block := range d.blocks[:hot] {
		block %= recreatedLUN / int64(d.BlockSize())
		v, err := d.read(block)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if v != 0 && v != mark+uint64(block) { // two of the blocks may be one here
			r.rec.failed("a new LUN holds %d in block %d", v, block)
		}
		if err := d.do(initiator.OpWrite, block, register.Fill(make([]byte, d.BlockSize()), mark+uint64(block)), false); err != nil && !r.rec.excused(err) {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}
