package scsi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"
	"sync/atomic"
)

// UnitConfig is what a logical unit shows. Size, ReadOnly and the like may change with Unit.Update.
type UnitConfig struct {
	UUID         string // of the LUN, RFC 9562, lower case; the designators are derived from it
	SizeBytes    int64  // a multiple of BlockSize
	BlockSize    int    // 512 or 4096 bytes; 512 when 0
	Thin         bool   // logical block provisioning: UNMAP, WRITE SAME with UNMAP, GET LBA STATUS
	WriteCache   bool   // initial WCE of the caching mode page
	ReadOnly     bool   // write commands are refused with 27/00
	OptimalBytes int64  // optimal transfer length; 1 MiB when 0
}

// physicalBlock is what the unit calls its physical block, in bytes: the block of the filesystems
// beneath.
const physicalBlock = 4096

// unitState is a UnitConfig with what the command path wants of it.
type unitState struct {
	UnitConfig
	blocks uint64
	shift  uint8 // log2 of BlockSize
}

// Unit is a logical unit as one node presents it.
type Unit struct {
	uuid          string
	naa           [16]byte
	medium        Medium
	state         atomic.Pointer[unitState]
	pr            atomic.Pointer[PRState]
	mode          atomic.Pointer[ModeState]
	quarantined   atomic.Bool
	transitioning atomic.Int64 // arrival of the first command answered BUSY for it, 0 when the unit is decided
}

// NewUnit makes a unit over a medium.
func NewUnit(cfg UnitConfig, medium Medium) (*Unit, error) {
	u := &Unit{uuid: cfg.UUID, naa: WWID(cfg.UUID), medium: medium}
	if err := u.Update(cfg); err != nil {
		return nil, err
	}
	u.pr.Store(&PRState{})
	m := DefaultMode(cfg.WriteCache)
	u.mode.Store(&m)
	return u, nil
}

// Update changes the configuration; raising 2A/09 (capacity) or whatever follows is the caller's,
// on both nodes. The uuid and the block size of a unit never change.
func (u *Unit) Update(cfg UnitConfig) error {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	if cfg.OptimalBytes == 0 {
		cfg.OptimalBytes = 1 << 20
	}
	if cfg.UUID != u.uuid {
		return fmt.Errorf("unit %s: its uuid cannot change to %q", u.uuid, cfg.UUID)
	}
	if cfg.BlockSize != 512 && cfg.BlockSize != 4096 {
		return fmt.Errorf("unit %s: block size %d is neither 512 nor 4096", u.uuid, cfg.BlockSize)
	}
	if old := u.state.Load(); old != nil && old.BlockSize != cfg.BlockSize {
		return fmt.Errorf("unit %s: its block size cannot change from %d to %d", u.uuid, old.BlockSize, cfg.BlockSize)
	}
	if cfg.SizeBytes <= 0 || cfg.SizeBytes%int64(cfg.BlockSize) != 0 {
		return fmt.Errorf("unit %s: size %d is not a positive multiple of %d", u.uuid, cfg.SizeBytes, cfg.BlockSize)
	}
	shift := uint8(bits.TrailingZeros(uint(cfg.BlockSize)))
	u.state.Store(&unitState{UnitConfig: cfg, blocks: uint64(cfg.SizeBytes) >> shift, shift: shift})
	return nil
}

// UUID is the LUN's uuid.
func (u *Unit) UUID() string { return u.uuid }

// Config is the present configuration.
func (u *Unit) Config() UnitConfig { return u.state.Load().UnitConfig }

// Medium stores the unit's data.
func (u *Unit) Medium() Medium { return u.medium }

// PR is the reservation state; never nil. It is replaced, never changed.
func (u *Unit) PR() *PRState { return u.pr.Load() }

// SetPR publishes a new reservation state: the metadata log applied a change. nil is the empty
// state.
func (u *Unit) SetPR(s *PRState) {
	if s == nil {
		s = &PRState{}
	}
	u.pr.Store(s)
}

// Quarantine lets the unit refuse every command but those that describe it, with NOT READY, MANUAL
// INTERVENTION REQUIRED, or ends that.
func (u *Unit) Quarantine(on bool) { u.quarantined.Store(on) }

// Quarantined reports whether it does.
func (u *Unit) Quarantined() bool { return u.quarantined.Load() }

// Mode is the mode page state.
func (u *Unit) Mode() ModeState { return *u.mode.Load() }

// SetMode publishes a new mode page state.
func (u *Unit) SetMode(m ModeState) { u.mode.Store(&m) }

// WWID derives a LUN's NAA designator from its uuid: NAA 6 (SPC-4 §7.8.6.6.5), an organisation id
// of 02474Dh, then the first 100 bits of SHA-256 over "gemel lun " and the uuid. The organisation
// id has the "locally administered" bit, so it belongs to no company. Hashing keeps the designators
// apart whatever kind of uuid is used; 100 bits make a collision among a million LUNs less likely
// than one in 10^18.
func WWID(uuid string) (naa [16]byte) {
	sum := sha256.Sum256([]byte("gemel lun " + uuid))
	copy(naa[3:], sum[:13])
	naa[0], naa[1], naa[2] = 0x60, 0x24, 0x74
	naa[3] = 0xd0 | naa[3]&0x0f
	return naa
}

// WWIDString is WWID as dm-multipath and udev show it after the leading 3: 32 lower-case hex
// digits.
func WWIDString(uuid string) string {
	n := WWID(uuid)
	return hex.EncodeToString(n[:])
}

// Serial is the unit serial number (VPD page 80h): the uuid without its dashes.
func Serial(uuid string) string { return strings.ReplaceAll(uuid, "-", "") }
