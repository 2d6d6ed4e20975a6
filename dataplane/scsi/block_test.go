package scsi_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestReadAndWriteOfEverySize(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	data := pattern(4*512, 7)
	for _, c := range []struct {
		name        string
		write, read []byte
	}{
		{"6", cdb(0x0a, 6, 3, 9, 4, 4), cdb(0x08, 6, 3, 9, 4, 4)},
		{"10", cdb10(0x2a, 0, 100, 4), cdb10(0x28, 0, 100, 4)},
		{"10 FUA", cdb10(0x2a, 8, 200, 4), cdb10(0x28, 8, 200, 4)},
		{"12", cdb(0xaa, 12, 4, 2, 9, 4), cdb(0xa8, 12, 4, 2, 9, 4)},
		{"16", cdb16(0x8a, 0, testBlocks-4, 4), cdb16(0x88, 0, testBlocks-4, 4)},
		{"and verify 10", cdb10(0x2e, 2, 300, 4), cdb10(0x28, 0, 300, 4)},
		{"and verify 16", cdb16(0x8e, 2, 400, 4), cdb16(0x88, 0, 400, 4)},
	} {
		if k := h.do(c.write, data, 0); k.Status != 0 || k.Transfer != len(data) {
			t.Fatalf("%s: status %x, sense %06x, transfer %d", c.name, k.Status, k.sense(), k.Transfer)
		}
		if got := h.good(c.read, nil, len(data)); !bytes.Equal(got, data) {
			t.Errorf("%s: read something else", c.name)
		}
	}
	if got := h.good(cdb(0x08, 6), nil, 256*512); len(got) != 256*512 {
		t.Errorf("READ(6) of length 0 gave %d bytes", len(got))
	}
}

func TestBlockCommandsThatAreRefused(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	one := make([]byte, 512)
	for _, c := range []struct {
		name string
		cdb  []byte
		out  []byte
		want uint32
	}{
		{"read beyond the end", cdb16(0x88, 0, testBlocks, 1), nil, 0x052100},
		{"read across the end", cdb16(0x88, 0, testBlocks-1, 2), nil, 0x052100},
		{"read that wraps around", cdb16(0x88, 0, 1<<64-1, 2), nil, 0x052100},
		{"no blocks beyond the end", cdb16(0x88, 0, testBlocks+1, 0), nil, 0x052100},
		{"write beyond the end", cdb16(0x8a, 0, testBlocks, 1), one, 0x052100},
		{"more than the transfer limit", cdb16(0x88, 0, 0, scsi.MaxTransfer/512+1), nil, 0x052400},
		{"RDPROTECT", cdb16(0x88, 0x20, 0, 1), nil, 0x052400},
		{"WRPROTECT", cdb16(0x8a, 0x20, 0, 1), one, 0x052400},
		{"NACA", append(cdb16(0x88, 0, 0, 1)[:15], 4), nil, 0x052400},
		{"reserved BYTCHK", cdb16(0x8f, 4, 0, 1), one, 0x052400},
		{"WRITE SAME of nothing", cdb16(0x93, 0, 0, 0), one, 0x052400},
		{"WRITE SAME of half a block", cdb16(0x93, 0, 0, 1), one[:256], 0x052400},
		{"WRITE SAME, too long", cdb16(0x93, 0, 0, 16<<20/512+1), one, 0x052400},
		{"WRITE SAME beyond the end", cdb16(0x93, 0, testBlocks, 1), one, 0x052100},
		{"WRITE SAME with ANCHOR", cdb16(0x93, 0x18, 0, 1), one, 0x052400},
		{"NDOB in ten bytes", cdb10(0x41, 1, 0, 1), one, 0x052400},
		{"COMPARE AND WRITE of half", cdb(0x89, 16, 13, 1), one, 0x052400},
		{"COMPARE AND WRITE beyond the end", cdb(0x89, 16, 7, 1, 13, 1), make([]byte, 1024), 0x052100},
		{"GET LBA STATUS beyond the end", cdb16(0x9e, 0x12, testBlocks, 24), nil, 0x052100},
		{"SYNCHRONIZE CACHE beyond the end", cdb16(0x91, 0, testBlocks+1, 0), nil, 0x052100},
		{"PRE-FETCH beyond the end", cdb16(0x90, 0, testBlocks, 1), nil, 0x052100},
		{"an unknown operation code", cdb(0xff, 16), nil, 0x052000},
		{"an unknown service action", cdb(0x9e, 16, 1, 0x1f), nil, 0x052400},
	} {
		t.Run(c.name, func(t *testing.T) { h.fails(c.want, c.cdb, c.out, 512*(1-min(1, len(c.out)))) })
	}
}

// Less than a block cannot be written, nor compared: GOOD would say that it was. Nothing at all is
// as the host announced it.
func TestAnOverflowOfLessThanABlock(t *testing.T) {
	for _, size := range []int{512, 4096} {
		h := newRig(t, func(c *scsi.UnitConfig) { c.BlockSize = size }).login("iqn.a", 1)
		before := pattern(2*size, 1)
		h.good(cdb16(0x8a, 0, 0, 2), before, 0)
		for name, c := range map[string][]byte{"WRITE(10)": cdb10(0x2a, 0, 0, 1), "WRITE(16)": cdb16(0x8a, 0, 0, 2), "WRITE AND VERIFY": cdb16(0x8e, 2, 0, 2),
			"ORWRITE": cdb16(0x8b, 0, 0, 2), "VERIFY": cdb16(0x8f, 2, 0, 2), "VERIFY of one block": cdb16(0x8f, 6, 0, 2)} {
			blocks := 2
			if name == "WRITE(10)" || name == "VERIFY of one block" {
				blocks = 1
			}
			for _, n := range []int{1, 200, size - 1} {
				k := h.do(c, bytes.Repeat([]byte{0xff}, n), 0)
				if k.sense() != 0x050e03 || k.Transfer != blocks*size {
					t.Errorf("%s with %d bytes: status %x, sense %06x, transfer %d", name, n, k.Status, k.sense(), k.Transfer)
				}
			}
			if k := h.do(c, []byte{}, 0); k.Status != scsi.StatusGood || k.Transfer != blocks*size {
				t.Errorf("%s with nothing: status %x, transfer %d", name, k.Status, k.Transfer)
			}
		}
		if got := h.good(cdb16(0x88, 0, 0, 2), nil, 2*size); !bytes.Equal(got, before) {
			t.Error("something was written")
		}
	}
}

func TestAnOverflowWritesWhatWasSent(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	h.good(cdb16(0x8a, 0, 0, 2), pattern(1024, 1), 0)
	k := h.do(cdb16(0x8a, 0, 0, 2), pattern(700, 9), 0) // one block and a part of the next
	if k.Status != 0 || k.Transfer != 1024 {
		t.Fatalf("status %x, transfer %d", k.Status, k.Transfer)
	}
	want := append(pattern(700, 9)[:512], pattern(1024, 1)[512:]...)
	if got := h.good(cdb16(0x88, 0, 0, 2), nil, 1024); !bytes.Equal(got, want) {
		t.Error("not the whole blocks that were sent, and only those")
	}
}

func TestWriteProtection(t *testing.T) {
	r := newRig(t, func(c *scsi.UnitConfig) { c.ReadOnly = true })
	h := r.login("iqn.a", 1)
	one := make([]byte, 512)
	h.fails(0x072700, cdb16(0x8a, 0, 0, 1), one, 0)
	h.fails(0x072700, cdb16(0x93, 0, 0, 1), one, 0)
	h.fails(0x072700, cdb(0x89, 16, 13, 1), make([]byte, 1024), 0)
	h.good(cdb16(0x88, 0, 0, 1), nil, 512)
	if b := h.good(cdb(0x1a, 6, 2, 0x3f, 4, 0xff), nil, 255); b[2]&0x80 == 0 {
		t.Error("MODE SENSE does not say write protected")
	}
}

func TestVerifyComparesBlocks(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	data := pattern(3*512, 3)
	h.good(cdb16(0x8a, 0, 8, 3), data, 0)
	h.good(cdb16(0x8f, 0, 8, 3), nil, 0)
	h.good(cdb16(0x8f, 2, 8, 3), data, 0)
	bad := bytes.Clone(data)
	bad[700] ^= 1
	k := h.do(cdb16(0x8f, 2, 8, 3), bad, 0)
	if k.sense() != 0x0e1d00 || binary.BigEndian.Uint32(k.Sense[3:]) != 700 {
		t.Errorf("sense % x, want a miscompare at 700", k.Sense)
	}
	same := bytes.Repeat(data[:512], 3)
	h.good(cdb16(0x8a, 0, 8, 3), same, 0)
	h.good(cdb16(0x8f, 6, 8, 3), data[:512], 0)
	h.fails(0x0e1d00, cdb16(0x8f, 6, 8, 3), data[512:1024], 0)

	big := pattern(1<<20+512, 1) // in several pieces
	h.good(cdb16(0x8a, 0, 0, 2049), big, 0)
	h.good(cdb16(0x8f, 2, 0, 2049), big, 0)
	h.good(cdb16(0x8f, 0, 0, 2049), nil, 0)
	big[1<<20+100] ^= 1
	k = h.do(cdb16(0x8f, 2, 0, 2049), big, 0)
	if k.sense() != 0x0e1d00 || binary.BigEndian.Uint32(k.Sense[3:]) != 1<<20+100 {
		t.Errorf("sense % x, want a miscompare at %d", k.Sense, 1<<20+100)
	}
}

func TestAReadHoldsNoMoreThanTheHostExpects(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	h.good(cdb16(0x8a, 0, 0, 2), pattern(1024, 1), 0)
	k := h.do(cdb16(0x88, 0, 0, 2048), nil, 700)
	if k.Status != 0 || k.Transfer != 1<<20 || !bytes.Equal(k.DataIn, pattern(1024, 1)) {
		t.Errorf("status %02x, transfer %d, %d bytes", k.Status, k.Transfer, len(k.DataIn))
	}
	if k := h.do(cdb16(0x88, 0, 0, 2048), nil, 0); k.Status != 0 || k.Transfer != 1<<20 || len(k.DataIn) != 0 {
		t.Errorf("status %02x, transfer %d, %d bytes", k.Status, k.Transfer, len(k.DataIn))
	}
}

func TestCompareAndWrite(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	old, next := pattern(1024, 1), pattern(1024, 2)
	h.good(cdb16(0x8a, 0, 0, 2), old, 0)
	caw := cdb(0x89, 16, 13, 2)
	h.good(caw, append(bytes.Clone(old), next...), 0)
	if got := h.good(cdb16(0x88, 0, 0, 2), nil, 1024); !bytes.Equal(got, next) {
		t.Fatal("not written")
	}
	k := h.do(caw, append(bytes.Clone(old), old...), 0)
	if k.sense() != 0x0e1d00 || k.Sense[0]&0x80 == 0 {
		t.Errorf("sense % x", k.Sense)
	}
	if got := h.good(cdb16(0x88, 0, 0, 2), nil, 1024); !bytes.Equal(got, next) {
		t.Fatal("a miscompare wrote")
	}
}

func TestOrWriteIsAtomic(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.a", 1)
	const hosts, each = 4, 8 // every bit of a block's first 32 is set once, by somebody
	done := make(chan error, hosts)
	for i := range hosts {
		o := r.login(string(rune('b'+i)), i%2+1)
		go func() {
			for j := range each {
				b := make([]byte, 512)
				b[(i*each+j)/8] = 1 << ((i*each + j) % 8)
				for o.do(cdb16(0x8b, 0, 0, 1), b, 0).Status == scsi.StatusBusy {
				}
			}
			done <- nil
		}()
	}
	for range hosts {
		<-done
	}
	if got := h.good(cdb16(0x88, 0, 0, 1), nil, 512); !bytes.Equal(got[:4], []byte{0xff, 0xff, 0xff, 0xff}) {
		t.Errorf("bits were lost: % x", got[:4])
	}
}

func TestThinProvisioning(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	data := pattern(64<<10, 5)
	h.good(cdb16(0x8a, 0, 0, 128), data, 0)
	status := func(lba uint64) (blocks uint32, mapped bool) {
		b := h.good(cdb16(0x9e, 0x12, lba, 24), nil, 24)
		if got := binary.BigEndian.Uint64(b[8:]); got != lba {
			t.Errorf("descriptor begins at %d, not at %d", got, lba)
		}
		return binary.BigEndian.Uint32(b[16:]), b[20] == 0
	}
	if n, mapped := status(0); !mapped || n != 128 {
		t.Errorf("after the write: %d blocks, mapped %v", n, mapped)
	}
	p := make([]byte, 8+2*16)
	binary.BigEndian.PutUint16(p, uint16(len(p)-2))
	binary.BigEndian.PutUint16(p[2:], 32)
	binary.BigEndian.PutUint32(p[16:], 64) // [0, 64)
	binary.BigEndian.PutUint64(p[24:], 100)
	binary.BigEndian.PutUint32(p[32:], 3) // [100, 103): less than a block of the filesystem
	h.good(cdb(0x42, 10, 8, len(p)), p, 0)
	clear(data[:64*512])
	clear(data[100*512 : 103*512])
	if got := h.good(cdb16(0x88, 0, 0, 128), nil, len(data)); !bytes.Equal(got, data) {
		t.Error("unmapped blocks do not read as zero, or others do")
	}
	if n, mapped := status(0); mapped || n != 64 {
		t.Errorf("after UNMAP: %d blocks, mapped %v", n, mapped)
	}
	h.good(cdb16(0x93, 0x08, 64, 64), make([]byte, 512), 0)
	if n, mapped := status(0); mapped || n != testBlocks {
		t.Errorf("after WRITE SAME with UNMAP: %d blocks, mapped %v", n, mapped)
	}
	h.good(cdb16(0x93, 0x08, 8, 4), pattern(512, 9), 0) // UNMAP of what is not zero has to write it
	if got := h.good(cdb16(0x88, 0, 8, 4), nil, 2048); !bytes.Equal(got, bytes.Repeat(pattern(512, 9), 4)) {
		t.Error("WRITE SAME with UNMAP lost its data")
	}
	h.good(cdb16(0x93, 0x01, 8, 4), nil, 0) // NDOB
	if got := h.good(cdb16(0x88, 0, 8, 4), nil, 2048); !bytes.Equal(got, make([]byte, 2048)) {
		t.Error("NDOB did not write zeroes")
	}
}

func TestUnmapParameterLists(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	list := func(n int, lba uint64, blocks uint32) []byte {
		p := make([]byte, 8, 8+16*n)
		binary.BigEndian.PutUint16(p[2:], uint16(16*n))
		for range n {
			p = binary.BigEndian.AppendUint64(p, lba)
			p = binary.BigEndian.AppendUint32(p, blocks)
			p = append(p, 0, 0, 0, 0)
		}
		return p
	}
	unmap := func(n int) []byte { return cdb(0x42, 10, 7, n>>8, 8, n&0xff) }
	for _, c := range []struct {
		name string
		list []byte
		want uint32
	}{
		{"too many descriptors", list(257, 0, 1), 0x052600},
		{"too many blocks", list(40, 0, testBlocks), 0x052600},
		{"beyond the end", list(1, testBlocks, 1), 0x052100},
		{"wraps around", list(1, 1<<64-1, 0xffffffff), 0x052100},
		{"shorter than its header", make([]byte, 7), 0x051a00},
	} {
		t.Run(c.name, func(t *testing.T) { h.fails(c.want, unmap(len(c.list)), c.list, 0) })
	}
	h.fails(0x051a00, unmap(24), list(1, 0, 1)[:16], 0) // less data than the CDB says
	h.good(unmap(8), list(0, 0, 0), 0)
	h.good(unmap(8+7), append(list(0, 0, 0), make([]byte, 7)...), 0) // half a descriptor is none
}

func TestAFullyProvisionedUnitOffersNoUnmap(t *testing.T) {
	h := newRig(t, func(c *scsi.UnitConfig) { c.Thin = false }).login("iqn.a", 1)
	h.fails(0x052000, cdb(0x42, 10), nil, 0)
	h.fails(0x052400, cdb16(0x93, 8, 0, 1), make([]byte, 512), 0)
	h.fails(0x052400, cdb16(0x9e, 0x12, 0, 24), nil, 24)
	h.good(cdb16(0x93, 0, 0, 1), make([]byte, 512), 0)
	if b := h.good(cdb16(0x9e, 0x10, 0, 32), nil, 32); b[14] != 0 {
		t.Errorf("READ CAPACITY(16) claims provisioning: %02x", b[14])
	}
}

func TestTheFastPathDoesNotAllocate(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	buf := make([]byte, 4096)
	k := &scsi.Task{Nexus: h.nexus, Arrived: bootTime(), Expected: 4096, Read: true, Alloc: func(int) []byte { return buf }}
	k.Done = func(*scsi.Task) { t.Error("completed asynchronously") }
	run := func(op byte) {
		copy(k.CDB[:], cdb16(op, 0, 64, 8))
		k.DataOut = nil
		if op == 0x8a {
			k.DataOut = buf
		}
		if !h.srv.Submit(k) || k.Status != 0 {
			t.Error("it failed")
		}
	}
	c := [2][]byte{cdb16(0x8a, 0, 64, 8), cdb16(0x88, 0, 64, 8)}
	run(0x8a)
	if n := testing.AllocsPerRun(500, func() {
		for i := range c {
			copy(k.CDB[:], c[i])
			k.DataOut = buf
			h.srv.Submit(k)
		}
	}); n != 0 {
		t.Errorf("%v allocations per write and read", n)
	}
}
