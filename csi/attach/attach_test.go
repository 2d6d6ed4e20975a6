package attach

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPublishContextRoundTrip(t *testing.T) {
	a := Attachment{VolumeID: "v", Generation: 1<<63 + 7, HostIQN: "iqn.h", TargetIQN: "iqn.t", Portals: []string{"10.0.0.1:3260", "[fe80::1]:3260"},
		LUN: 16383, WWID: "6001405", ReadOnly: true}
	got, err := FromPublishContext("v", a.PublishContext())
	if err != nil || !got.Same(a) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, k := range []string{KeyHost, KeyTarget, KeyPortals, KeyLUN, KeyWWID, KeyGeneration} {
		m := a.PublishContext()
		delete(m, k)
		if _, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), k) {
			t.Errorf("without %s: %v", k, err)
		}
	}
	for k, v := range map[string]string{KeyLUN: "16384", KeyGeneration: "-1"} {
		m := a.PublishContext()
		m[k] = v
		if _, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s=%s: %v", k, v, err)
		}
	}
}

// An older node plugin rejects a publish for a replay, because it lacks the LUN number.
func TestPublishContextOfReplayLacksTheLUN(t *testing.T) {
	a := Attachment{VolumeID: "v", Generation: 7, HostIQN: "iqn.h", TargetIQN: "iqn.t", Portals: []string{"10.0.0.1:3260"}, LUN: 5, WWID: "6001405", Replay: true}
	m := a.PublishContext()
	got, err := FromPublishContext("v", m)
	if err != nil || !got.Same(a) || !got.Replay || got.ReadOnly || m[KeyLUN] != "" {
		t.Fatalf("%+v, %v, %v", got, m, err)
	}
	for k, v := range map[string]string{KeyReplay: "16384", KeyReadOnly: "true"} {
		m := a.PublishContext()
		m[k] = v
		if _, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), KeyReplay) {
			t.Errorf("%s=%q: %v", k, v, err)
		}
	}
}

// The publish context says that credentials are required, and has no secrets.
func TestPublishContextHasNoSecrets(t *testing.T) {
	a := Attachment{VolumeID: "v", Generation: 7, HostIQN: "iqn.h", TargetIQN: "iqn.t", Portals: []string{"10.0.0.1:3260"}, WWID: "6001405", Pair: "p", Enroll: true,
		Auth: &CHAP{"u", "very secret"}, MutualAuth: &CHAP{"m", "other secret"}}
	m := a.PublishContext()
	got, err := FromPublishContext("v", m)
	if err != nil || !got.Same(a) || !got.Enroll || got.Pair != "p" || strings.Contains(fmt.Sprint(m), "secret") {
		t.Fatalf("%+v, %v, %v", got, m, err)
	}
	for k, v := range map[string]string{KeyPair: "", KeyCHAP: "OneWay"} {
		m := a.PublishContext()
		m[k] = v
		if _, err := FromPublishContext("v", m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), KeyCHAP) {
			t.Errorf("%s=%q: %v", k, v, err)
		}
	}
}

func TestSecretsAreParsedAndHidden(t *testing.T) {
	auth, mutual, err := ParseSecrets(map[string]string{SecretUser: "u", SecretSecret: "very secret", SecretMutualUser: "m", SecretMutualSecret: "other secret"})
	if err != nil || auth.Secret != "very secret" || mutual.User != "m" {
		t.Fatal(auth, mutual, err)
	}
	if s := fmt.Sprintf("%v %+v %#v", auth, *auth, auth); strings.Contains(s, "very secret") {
		t.Fatalf("the secret is visible: %s", s)
	}
	for _, m := range []map[string]string{{SecretUser: "u"}, {SecretMutualUser: "m", SecretMutualSecret: "s"}} {
		if _, _, err := ParseSecrets(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", m, err)
		}
	}
	if a, m, err := ParseSecrets(nil); a != nil || m != nil || err != nil {
		t.Fatal(a, m, err)
	}
}

func FuzzFromPublishContext(f *testing.F) {
	f.Add("iqn.h", "iqn.t", "a:1,b:2", "7", "60", "9")
	f.Add("", "", ",", "-1", "", "99999999999999999999")
	f.Fuzz(func(t *testing.T, host, target, portals, lun, wwid, gen string) {
		a, err := FromPublishContext("v", map[string]string{KeyHost: host, KeyTarget: target, KeyPortals: portals, KeyLUN: lun, KeyWWID: wwid, KeyGeneration: gen})
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if b, err := FromPublishContext("v", a.PublishContext()); err != nil || !a.Same(b) {
			t.Fatalf("%+v became %+v, %v", a, b, err)
		}
	})
}
