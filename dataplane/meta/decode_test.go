package meta

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// What a newer release says is refused by name, wherever it is; what is no JSON is not taken
// for that.
func TestDecodeRefusesWhatIsNewer(t *testing.T) {
	for text, names := range map[string]string{
		`{"resize_group":{"uuid":"x"}}`:                                                     "resize_group",
		`{"map_host":{"uuid":"x","host":"h","weight":3}}`:                                   "weight",
		`{"create_lun":{"lun":{"uuid":"x","maps":{"h":{"lun":1,"queue":2}}}}}`:              "queue",
		`{"create_lun":{"lun":{"uuid":"x"}},"tenant":"t"}`:                                  "tenant",
		`{"pr":{"uuid":"x","nexus":{"initiator":"h","vrf":"v"}}}`:                           "vrf",
		`{"create_snapshot":{"snapshot":{"uuid":"x","labels":{"any":"label"},"tier":"g"}}}`: "tier",
	} {
		_, err := DecodeEntry([]byte(text))
		if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), `"`+names+`"`) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "{", `{"commit":3}`, `{} {}`} {
		if _, err := DecodeEntry([]byte(text)); err == nil || errors.Is(err, ErrNewer) {
			t.Errorf("%q: %v", text, err)
		}
	}
	s := NewState()
	if err := Decode([]byte(`{"index":3,"tiers":{}}`), s); !errors.Is(err, ErrNewer) {
		t.Errorf("a state with more in it: %v", err)
	}
}

// Every field that this release writes it reads.
func TestDecodeTakesWhatIsWritten(t *testing.T) {
	tab := newTable(t)
	e := lun(1, 1)
	tab.apply(e)
	tab.apply(Entry{Commit: &Object{UUID: id(1)}})
	tab.apply(Entry{MapHost: &MapHost{UUID: id(1), Host: "h", CHAP: CHAP{User: "u", Secret: "s"}}})
	raw, err := json.Marshal(tab.State)
	if err != nil {
		t.Fatal(err)
	}
	if err := Decode(raw, NewState()); err != nil {
		t.Fatal(err)
	}
}
