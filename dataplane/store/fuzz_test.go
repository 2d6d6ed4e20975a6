package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// A block decodes to what encodes to the same bytes, or not at all, and then the words are
// untouched.
func FuzzIntentBlock(f *testing.F) {
	o := intentOwner{lun: uuid.MustParse(lunA), store: uuid.MustParse(lunB)}
	good := make([]byte, intentBlock)
	o.encode(good, 3, []uint64{1, 0, ^uint64(0)})
	f.Add(good, false)
	f.Add(good[:100], false)
	f.Add(good, true)
	f.Add([]byte("GMLINTNT"), true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal { // past the checksum, or nothing behind it is ever reached
			b = append(b[:min(len(b), intentBlock):min(len(b), intentBlock)], make([]byte, max(0, intentBlock-len(b)))...)
			crc := intentCRC(b)
			b[intentCRCAt], b[intentCRCAt+1], b[intentCRCAt+2], b[intentCRCAt+3] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
		}
		var words [blockWords]uint64
		words[7] = 42
		err := o.decode(b, 3, words[:])
		if err != nil {
			if !errors.Is(err, errIntentBlock) || words[7] != 42 || words[8] != 0 {
				t.Fatalf("%v, words %x", err, words[7:9])
			}
			return
		}
		again := make([]byte, intentBlock)
		o.encode(again, 3, words[:])
		for _, at := range [][2]int{{0, 10}, {12, 20}, {24, 56}, {intentHeader, intentBlock}} {
			if !bytes.Equal(again[at[0]:at[1]], b[at[0]:at[1]]) {
				t.Fatalf("bytes %v do not survive", at)
			}
		}
	})
}

// store.json: what is taken has every field that is later relied on, and survives being written
// again.
func FuzzIdentity(f *testing.F) {
	f.Add([]byte(`{"format":1,"id":"` + lunA + `","cluster":"c1","pair":"p1","node":"a"}`))
	f.Add([]byte(`{"format":2,"id":"` + lunA + `","cluster":"c1","pair":"p1","node":"b"}`))
	f.Add([]byte(`{"format":3,"id":7}`))
	f.Add([]byte(`{"format":1e0,"ID":"` + strings.ToUpper(lunA) + `"}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parseIdentity(b)
		if err != nil {
			if !errors.Is(err, ErrForeign) && !errors.Is(err, ErrNewer) {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		if id, err := uuid.Parse(rec.ID); err != nil || id.String() != rec.ID || rec.Format < formatAlone || rec.Format > Format {
			t.Fatalf("taken: %+v", rec)
		}
		raw, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseIdentity(raw); err != nil || again != rec {
			t.Fatalf("%+v became %+v, %v", rec, again, err)
		}
	})
}

// A block of a mark: what is taken is what was written, whatever it is.
func FuzzMark(f *testing.F) {
	good := make([]byte, markBlock)
	encodeMark(good, 7)
	f.Add(good)
	f.Add(good[:19])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := decodeMark(b)
		if !ok {
			return
		}
		again := make([]byte, 20)
		encodeMark(again, n)
		if !bytes.Equal(again, b[:20]) {
			t.Fatalf("%x became %d", b[:20], n)
		}
	})
}

// The untrusted marker: whatever it holds, it is a reason, of one printable line.
func FuzzUntrusted(f *testing.F) {
	f.Add([]byte("write volumes/default/luns/x.img: input/output error\n"))
	f.Add([]byte{0, 0xff, 0xfe})
	f.Add([]byte(" \n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := parseUntrusted(b)
		if s == "" || len(s) > maxReason || strings.ContainsAny(s, "\n\r\x00\x1b") {
			t.Fatalf("%q", s)
		}
	})
}

func TestMarkerAndIdentityOfAbsurdLength(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	huge := bytes.Repeat([]byte("x"), maxSmall+1)
	if err := os.WriteFile(filepath.Join(dir, untrustedFile), huge, 0o600); err != nil {
		t.Fatal(err)
	}
	if why, err := s.Untrusted(); err != nil || len(why) != maxReason {
		t.Fatalf("%d bytes, %v", len(why), err)
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, identityFile), huge, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, testIdent, Options{}); !errors.Is(err, errTooLong) {
		t.Fatalf("%v", err)
	}
}

// The checksum of the metadata: what is taken is what was written.
func FuzzRecord(f *testing.F) {
	r := record{store: uuid.MustParse(lunA), txid: 7, seq: 3, total: sum{1, 2}}
	f.Add(r.encode(), byte(recordVersion))
	f.Add([]byte{}, byte(0))
	f.Fuzz(func(t *testing.T, b []byte, version byte) {
		if len(b) > 5 {
			b = reseal(b, version) // past its own checksum
		}
		r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, errRecord) && !errors.Is(err, ErrNewer) {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		if !bytes.Equal(r.encode(), b) {
			t.Fatalf("%x became %+v", b, r)
		}
	})
}

// reseal gives a record a version, and the checksum that belongs to it.
func reseal(b []byte, version byte) []byte {
	b = bytes.Clone(b)
	b[0] = version
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
	return b
}

// Any bytes instead of a database: an error, or a walk to its end.
func FuzzBolt(f *testing.F) {
	path := filepath.Join(f.TempDir(), "x.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		f.Fatal(err)
	}
	for i := range 40 {
		if err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("luns"))
			if err != nil {
				return err
			}
			return b.Put(fmt.Append(nil, 1000+i), make([]byte, 1+i*i))
		}); err != nil {
			f.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		f.Fatal(err)
	}
	real, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	m, err := parseMetaPage(real)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(real[:int64(m.pages)*m.pageSize], uint16(m.pages))
	f.Add(make([]byte, 8192), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, pages uint16) {
		page := os.Getpagesize()
		for i := range min(2, len(b)/page) { // meta pages that are whole, and then whatever there is
			x := b[i*page+boltHeader:]
			for k, v := range []uint32{boltMagic, boltVersion, uint32(page)} {
				native.PutUint32(x[4*k:], v)
			}
			native.PutUint64(x[40:], uint64(pages))
			h := fnv.New64a()
			_, _ = h.Write(x[:boltMeta-8])
			native.PutUint64(x[boltMeta-8:], h.Sum64())
		}
		_, _ = checkBolt(bytes.NewReader(b), int64(len(b)), func(string, []byte, []byte) error { return nil })
	})
}
