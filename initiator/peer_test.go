package initiator

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

// TestPeerSession runs sessions with every combination of digests and data modes against tgtd.
func TestPeerSession(t *testing.T) {
	x := startTgt(t)
	for _, v := range []struct {
		name string
		set  func(*SessionConfig)
	}{
		{"plain", func(*SessionConfig) {}},
		{"header digest", func(c *SessionConfig) { c.HeaderDigest = true }},
		{"both digests", func(c *SessionConfig) { c.HeaderDigest, c.DataDigest = true, true }},
		{"no immediate data", func(c *SessionConfig) { c.NoImmediateData = true }},
		{"R2T only", func(c *SessionConfig) { c.NoImmediateData, c.ForceR2T = true, true }},
		{"small segments", func(c *SessionConfig) { c.MaxRecvData = 512; c.DataDigest = true }},
		{"depth 1", func(c *SessionConfig) { c.QueueDepth = 1 }},
	} {
		t.Run(v.name, func(t *testing.T) {
			cfg := x.config()
			v.set(&cfg)
			x.digests(t, cfg.HeaderDigest, cfg.DataDigest)
			s, err := Login(testContext(t), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			exercise(t, s)
			if err := s.Logout(testContext(t)); err != nil {
				t.Fatalf("logout: %v", err)
			}
			if err := s.Submit(&Command{Done: func(*Command) {}}); !errors.Is(err, ErrSessionLost) {
				t.Fatalf("submit after logout: %v", err)
			}
		})
	}
}

// exercise writes and reads back through LUN 1 in sizes around every boundary, many at once.
func exercise(t *testing.T, s *Session) {
	t.Helper()
	for { // take the unit attentions of a fresh nexus
		r, err := s.Execute(testContext(t), 1, []byte{opTestUnitReady, 0, 0, 0, 0, 0}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Status == StatusGood {
			break
		}
		if k := r.Sense().Key; k != KeyUnitAttention {
			t.Fatalf("sense key %x", k)
		}
	}
	var wg sync.WaitGroup
	lba := uint64(0)
	for i, n := range []int{512, 1024, 4096, 65536 - 512, 65536, 65536 + 512, 262144, 262144 + 512, 1 << 20, 1<<20 + 4096, 3 << 20} {
		at := lba
		lba += uint64(n / 512)
		wg.Go(func() {
			want := randomBytes(n, uint64(i))
			w, r := cdbBlocks(opWrite16, 0, at, uint32(n/512)), cdbBlocks(opRead16, 0, at, uint32(n/512))
			res, err := s.Execute(testContext(t), 1, w[:], want, nil)
			if err == nil {
				err = res.Err(opWrite16)
			}
			if err != nil {
				t.Errorf("write %d: %v", n, err)
				return
			}
			got := make([]byte, n)
			res, err = s.Execute(testContext(t), 1, r[:], nil, got)
			if err == nil {
				err = res.Err(opRead16)
			}
			if err != nil || res.Got != n || !bytes.Equal(got, want) {
				t.Errorf("read %d: got %d, equal %v, %v", n, res.Got, bytes.Equal(got, want), err)
			}
		})
	}
	wg.Wait()
	// Beyond the end: an answer of the unit, not of the session.
	r := cdbBlocks(opRead16, 0, tgtSize/512, 1)
	res, err := s.Execute(testContext(t), 1, r[:], nil, make([]byte, 512))
	if err != nil || !errors.Is(res.Err(opRead16), ErrIllegalRequest) {
		t.Errorf("read beyond the end: %v, %v", err, res.Err(opRead16))
	}
}

func TestPeerCHAP(t *testing.T) {
	x := startTgt(t)
	x.adm(t, "--mode", "account", "--op", "new", "--user", "host", "--password", "host-secret-123")
	x.adm(t, "--mode", "account", "--op", "new", "--user", "target", "--password", "target-secret-123")
	x.adm(t, "--mode", "account", "--op", "bind", "--tid", "1", "--user", "host")
	x.adm(t, "--mode", "account", "--op", "bind", "--tid", "1", "--user", "target", "--outgoing")
	host, target := &CHAP{"host", "host-secret-123"}, &CHAP{"target", "target-secret-123"}
	for _, v := range []struct {
		name         string
		auth, mutual *CHAP
		ok           bool
	}{
		{"one-way", host, nil, true},
		{"mutual", host, target, true},
		{"no credentials", nil, nil, false},
		{"wrong secret", &CHAP{"host", "wrong-secret-123"}, nil, false},
		{"wrong target secret", host, &CHAP{"target", "wrong-secret-456"}, false},
		{"wrong target user", host, &CHAP{"other", "target-secret-123"}, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			cfg := x.config()
			cfg.Auth, cfg.MutualAuth = v.auth, v.mutual
			cfg.CHAPAlgorithms = []int{5} // tgt 1.0.85 offers the SHA family but refuses correct answers
			s, err := Login(testContext(t), cfg)
			if err == nil {
				exercise(t, s)
				s.Close()
			}
			if (err == nil) != v.ok {
				t.Fatalf("login: %v", err)
			}
			if err != nil && (!errors.Is(err, ErrAuth) && !errors.Is(err, ErrLogin) || bytes.Contains([]byte(err.Error()), []byte("secret-"))) {
				t.Fatalf("error %q", err)
			}
		})
	}
}

func TestPeerDiscovery(t *testing.T) {
	x := startTgt(t)
	list, err := Discover(testContext(t), x.config())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Name != x.iqn || len(list[0].Portals) != 1 || list[0].Portals[0].Address != x.portal {
		t.Fatalf("discovered %+v", list)
	}
}

func TestPeerDevice(t *testing.T) {
	x := startTgt(t)
	ctx := testContext(t)
	d, err := Open(ctx, Config{InitiatorName: x.config().InitiatorName, Target: x.iqn, Portals: []string{x.portal}, LUN: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d.Size() != tgtSize || d.BlockSize() != 512 || d.WWID() == "" {
		t.Fatalf("size %d, block size %d, wwid %q", d.Size(), d.BlockSize(), d.WWID())
	}
	want := randomBytes(12<<20, 9)
	if _, err := d.WriteAt(ctx, want, 4096); err != nil {
		t.Fatal(err)
	}
	if err := d.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteZeroes(ctx, 1<<20, 1<<20, false); err != nil {
		t.Fatal(err)
	}
	clear(want[1<<20-4096 : 2<<20-4096])
	got := make([]byte, len(want))
	if _, err := d.ReadAt(ctx, got, 4096); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: equal %v, %v", bytes.Equal(got, want), err)
	}
	if _, err := d.ReadAt(ctx, got[:100], 0); !errors.Is(err, ErrUnaligned) {
		t.Fatalf("unaligned: %v", err)
	}
	if _, err := d.ReadAt(ctx, got[:512], tgtSize); !errors.Is(err, ErrBeyondEnd) {
		t.Fatalf("beyond the end: %v", err)
	}
	if err := d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadAt(ctx, got[:512], 0); !errors.Is(err, ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
}

// TestPeerRestart kills the target under load and starts it again: no request may fail.
func TestPeerRestart(t *testing.T) {
	x := startTgt(t)
	ctx := testContext(t)
	path := x.cmd.Path
	d, err := Open(ctx, Config{InitiatorName: x.config().InitiatorName, Target: x.iqn, Portals: []string{x.portal}, LUN: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	count := func() int { mu.Lock(); defer mu.Unlock(); return done }
	stop := make(chan struct{})
	for i := range 8 {
		wg.Go(func() {
			buf := make([]byte, 4096)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := d.WriteAt(ctx, buf, int64(i*1000+n%100)*4096); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				mu.Lock()
				done++
				mu.Unlock()
			}
		})
	}
	eventually(t, "first writes", func() bool { return count() > 100 })
	x.kill()
	eventually(t, "path down", func() bool { return !d.Paths()[0].Connected })
	x.start(t, path)
	before := count()
	eventually(t, "writes go on", func() bool { return count() > before+100 })
	close(stop)
	wg.Wait()
}
