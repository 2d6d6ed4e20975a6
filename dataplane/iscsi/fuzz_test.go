package iscsi

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// FuzzServerBytes feeds bytes to a session after login. Whatever they are, the server answers or
// closes, and another session does not notice. Bytes of the client's own making follow the header
// fields that only it can know.
func FuzzServerBytes(f *testing.F) {
	b := serve(f, func(c *Config) {
		c.Limits.Transfer, c.Limits.SessionMemory, c.Limits.FirstBurst, c.Limits.MaxBurst = 64<<10, 128<<10, 8192, 64<<10
		c.Limits.Connections = 64
	}, nil)
	b.dev.forget.Store(true)
	seed := &client{t: f, params: pdu.DefaultParams(), cmdSN: 100, itt: 1}
	pdus := [][]byte{
		seed.encode(seed.read(0, 1), nil, nil),
		seed.encode(seed.command(opAsync, pdu.Final|pdu.ReadBit, 0, 16, 8192), nil, nil),
		seed.encode(seed.command(opWrite, pdu.Final|pdu.WriteBit, 0, 1, 512), nil, make([]byte, 512)),
		seed.encode(seed.command(opWrite, pdu.WriteBit, 0, 4, 2048), nil, make([]byte, 512)),
		seed.encode(seed.dataPDU(4, pdu.Reserved, 0, 512, true), nil, make([]byte, 512)),
		seed.encode(seed.dataPDU(4, 2, 0, 1024, true), nil, make([]byte, 1024)),
		seed.encode(seed.hold(), nil, nil),
		seed.encode(seed.tmf(pdu.TMFAbortTask, 5, 0), nil, nil),
		seed.encode(seed.tmf(pdu.TMFLogicalUnitReset, 0, 0), nil, nil),
		seed.encode(seed.request(pdu.NopOut, pdu.Final, true), nil, []byte("ping")),
		seed.encode(seed.request(pdu.TextReq, pdu.Final, false), nil, []byte("SendTargets=\x00")),
		seed.encode(seed.read(0, 1), []byte{0, 5, 1, 0, 1, 2, 3, 4}, nil),
		seed.encode(seed.request(pdu.SNACK, pdu.Final, true), nil, nil),
		seed.encode(seed.request(pdu.LogoutReq, pdu.Final, false), nil, nil),
	}
	f.Add(bytes.Join(pdus, nil), false)
	f.Add(bytes.Join(pdus, nil), true)
	for _, p := range pdus {
		f.Add(p, false)
	}
	other := b.dial(f)
	other.isid = 200
	if other.login() != 0 {
		f.Fatal("login")
	}
	f.Fuzz(func(t *testing.T, in []byte, digests bool) {
		keys := []string{"InitialR2T", "No"}
		if digests {
			keys = append(keys, "HeaderDigest", "CRC32C", "DataDigest", "CRC32C")
		}
		c := b.connect(t, keys...)
		if digests { // else no PDU would get through
			in = repair(in)
		}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			if _, err := c.nc.Write(in); err == nil {
				_ = c.nc.(interface{ CloseWrite() error }).CloseWrite()
			}
		}()
		// Until the server has had enough; a reset is as good as an end.
		var ne net.Error
		if _, err := io.Copy(io.Discard, c.nc); errors.As(err, &ne) && ne.Timeout() {
			t.Fatal("the server does not end the connection")
		}
		_ = c.nc.Close()
		<-sent
		other.t = t
		_ = other.nc.SetDeadline(time.Now().Add(bound))
		other.ping()
	})
}

// repair makes the digests of a stream of PDUs right as far as it goes.
func repair(in []byte) (out []byte) {
	c := &client{digests: true, params: pdu.Params{HeaderDigest: true, DataDigest: true}}
	for len(in) >= pdu.HeaderLen {
		h := pdu.BHS(append([]byte(nil), in[:pdu.HeaderLen]...))
		ahs, n := h.AHSLen(), h.DataLen()
		in = in[pdu.HeaderLen:]
		if len(in) < ahs+n+pdu.Pad(n) {
			break
		}
		out = append(out, c.encode(h, in[:ahs], in[ahs:ahs+n])...)
		in = in[ahs+n+pdu.Pad(n):]
	}
	return append(out, in...)
}

// FuzzLogin feeds a connection before login.
func FuzzLogin(f *testing.F) {
	b := serve(f, nil, testHosts)
	c := &client{t: f, params: pdu.DefaultParams()}
	request := func(flags byte, kv ...string) []byte {
		h := c.request(pdu.LoginReq, flags, true)
		h.SetITT(7)
		return c.encode(h, nil, pairs(kv...).Append(nil))
	}
	ids := []string{"InitiatorName", testHost, "TargetName", testTarget}
	f.Add(request(0x87, ids...))
	f.Add(append(request(0x00, append(ids[:4:4], "AuthMethod", "CHAP,None")...), request(0x87)...))
	f.Add(append(request(0x00, "InitiatorName", chapHost, "TargetName", testTarget, "AuthMethod", "CHAP"), request(0x00, "CHAP_A", "5,7")...))
	f.Add(append(request(0x44, ids[:2]...), request(0x87, ids[2:]...)...))
	f.Add(request(0x87, "InitiatorName", testHost, "SessionType", "Discovery", "MaxBurstLength", "0x200"))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := b.dial(t)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			if _, err := c.nc.Write(in); err == nil {
				_ = c.nc.(interface{ CloseWrite() error }).CloseWrite()
			}
		}()
		var ne net.Error
		if _, err := io.Copy(io.Discard, c.nc); errors.As(err, &ne) && ne.Timeout() {
			t.Fatal("the server does not end the connection")
		}
		_ = c.nc.Close()
		<-sent
	})
}
