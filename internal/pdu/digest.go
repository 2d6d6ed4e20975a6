package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestLen is the size of a header or data digest in bytes.
const DigestLen = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var padding [3]byte

// Digest is the CRC32C of b (RFC 7143 §13.1). For a header digest b is the BHS and all AHS.
func Digest(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// DataDigest is the CRC32C of a data segment including its zero padding to a word, which data does
// not contain.
func DataDigest(data []byte) uint32 {
	return crc32.Update(Digest(data), castagnoli, padding[:Pad(len(data))])
}

// UpdateDigest continues a digest over more bytes, the real padding of a received segment for one.
func UpdateDigest(d uint32, b []byte) uint32 { return crc32.Update(d, castagnoli, b) }

// PutDigest writes a digest as the wire has it: the RFC's bit order makes that least significant
// byte first.
func PutDigest(b []byte, d uint32) { binary.LittleEndian.PutUint32(b, d) }

// GetDigest reads what PutDigest wrote.
func GetDigest(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
