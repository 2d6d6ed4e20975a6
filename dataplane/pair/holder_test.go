package pair

import "testing"

// A node that acts on a record puts its lock on record with it, in one step, and says to its
// partner whether a later process holds the same one.
func TestLockGoesWithTheEpoch(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty, cfg.Lock = 5, false, "8:1"
	cfg.State.Lock = "8:0"
	r := newRig(t, cfg)
	if s := r.m.lockState(); s != LockOther {
		t.Fatalf("a copy of the folder is %q", s)
	}
	r.got(record(7, B), "v7")
	if x := r.next(ActSaveEpoch); x.State.Lock != "8:0" {
		t.Fatalf("a process that is no member is put on record: %q", x.State.Lock)
	}
	r.m.EpochSaved(r.now, 7, true)
	r.m.get(r.now)
	r.got(record(8, B, A), "v8")
	x := r.next(ActSaveEpoch)
	if x.State.Lock != "8:1" {
		t.Fatalf("lock %q", x.State.Lock)
	}
	r.m.EpochSaved(r.now, 8, true)
	if s := r.m.lockState(); s != LockSame {
		t.Fatalf("%q", s)
	}
	for _, c := range []struct{ mine, before string }{{"", "8:1"}, {"8:1", ""}} {
		cfg.Lock, cfg.State.Lock = c.mine, c.before
		if s := New(cfg).lockState(); s != LockUnknown {
			t.Errorf("%+v is %q", c, s)
		}
	}
}

// A copy of the folder beside the old one, within one boot: the earlier process may be at work, so
// this one waits for its partner, as after a reboot.
func TestCopiedFolderIsNoWarmStart(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty, cfg.Start = 5, false, 1000*ms
	cfg.Incarnation.Nonce, cfg.Lock, cfg.State.Lock = 9, "8:2", "8:1"
	r := newRig(t, cfg)
	r.got(record(5, A, B), "v5")
	r.pass(10 * lease)
	r.none(ActFlushAll)
	r.reason("coldStart: Wait")
}

// The lone member's next life, on another machine or from a copy: it takes the record at once, and
// serves no host before the one that was alone has looked at it (R2).
func TestRenewalFromElsewhereWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		waits  bool
	}{
		"the same":     {func(*Config) {}, false},
		"another boot": {func(c *Config) { c.Incarnation.Boot = "another" }, true},
		"another lock": {func(c *Config) { c.Lock = "8:2" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(A)
			cfg.DurableEpoch, cfg.Empty = 6, false
			cfg.Incarnation.Nonce, cfg.Lock, cfg.State.Lock, cfg.State.Flushed = 9, "8:1", "8:1", 6
			c.change(&cfg)
			r := newRig(t, cfg)
			r.got(record(6, A), "v6")
			r.won(r.claim(), "v7")
			r.saved()
			r.phase(Alone)
			if r.m.Serving(r.now) == c.waits {
				t.Fatalf("serves at once: %v", !c.waits)
			}
			r.pass(int64(r.m.cfg.RecordEvery+r.m.cfg.ArbiterMax) - 100*ms)
			if r.m.Serving(r.now) == c.waits {
				t.Fatalf("serves before the other one has looked: %v", !c.waits)
			}
			if _, ok := r.poll(ActArbiterGet); ok {
				r.m.ArbiterDone(r.now, Got, &r.m.rec, r.m.version, "")
			}
			r.pass(300 * ms)
			if c.waits {
				// The arbiter may have been set back meanwhile: only its answer ends the wait.
				r.pass(10 * lease)
				if r.m.Serving(r.now) || r.m.reason != unconfirmed {
					t.Fatalf("serves without the arbiter's answer, or gives no reason: %q", r.m.reason)
				}
				r.next(ActArbiterGet)
				r.m.ArbiterDone(r.now, Got, &r.m.rec, r.m.version, "")
			}
			if !r.m.Serving(r.now) || r.m.reason != "" {
				t.Fatal("waits for ever")
			}
		})
	}
}
