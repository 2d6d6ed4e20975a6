package initiator

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/gemel-storage/gemel/internal/alua"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseSense(t *testing.T) {
	for _, v := range []struct {
		name, raw string
		want      Sense
	}{
		{"fixed", "70000600000000" + "0a" + "00000000" + "2a09" + "00000000", Sense{Key: 6, ASC: 0x2a, ASCQ: 9}},
		{"fixed with information", "f0000e00000200" + "0a" + "00000000" + "1d00" + "00000000", Sense{Key: 0xe, ASC: 0x1d, Info: 512, InfoValid: true}},
		{"deferred", "71000300000000" + "0a" + "00000000" + "0c00", Sense{Key: 3, ASC: 0x0c}},
		{"descriptor", "7202040a00000000", Sense{Key: 2, ASC: 4, ASCQ: 0x0a}},
		{"descriptor with information", "720e1d000000000c" + "000a80000000000000001000", Sense{Key: 0xe, ASC: 0x1d, Info: 4096, InfoValid: true}},
		{"cut short", "7000", Sense{}},
		{"vendor", "7fffffff", Sense{}},
		{"nothing", "", Sense{}},
	} {
		if got := ParseSense(unhex(t, v.raw)); got != v.want {
			t.Errorf("%s: %+v, want %+v", v.name, got, v.want)
		}
	}
}

func TestSCSIErrorClasses(t *testing.T) {
	all := []error{ErrNoSpace, ErrReservationConflict, ErrMiscompare, ErrMedium, ErrDataProtect, ErrIllegalRequest, ErrHardware}
	check := func(key, asc, ascq byte) *SCSIError {
		return &SCSIError{Status: StatusCheckCondition, Sense: Sense{Key: key, ASC: asc, ASCQ: ascq}}
	}
	for _, v := range []struct {
		err  *SCSIError
		want []error
	}{
		{check(7, 0x27, 7), []error{ErrNoSpace, ErrDataProtect}},
		{check(7, 0x27, 0), []error{ErrDataProtect}},
		{check(0xe, 0x1d, 0), []error{ErrMiscompare}},
		{check(3, 0x11, 0), []error{ErrMedium}},
		{check(4, 0x44, 0), []error{ErrHardware}},
		{check(5, 0x21, 0), []error{ErrIllegalRequest}},
		{&SCSIError{Status: StatusReservationConflict}, []error{ErrReservationConflict}},
		{&SCSIError{Status: StatusBusy}, nil},
	} {
		for _, class := range all {
			want := false
			for _, w := range v.want {
				want = want || w == class
			}
			if errors.Is(v.err, class) != want {
				t.Errorf("%v is %v: %v", v.err, class, !want)
			}
		}
	}
}

func TestParseRTPG(t *testing.T) {
	groups := "8085000100020001" + "00000001" + "0185000200020001" + "00000002"
	for name, raw := range map[string]string{
		"short header":    "00000018" + groups,
		"extended header": "0000001c" + "10050000" + groups,
	} {
		r, err := parseRTPG(unhex(t, raw))
		if err != nil || len(r.Groups) != 2 {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		a, b := r.Groups[0], r.Groups[1]
		if a.Tag != 1 || a.State != alua.Optimized || !a.Preferred || a.Status != alua.Implicit || len(a.Ports) != 1 || a.Ports[0] != 1 {
			t.Errorf("%s: first group %+v", name, a)
		}
		if b.Tag != 2 || b.State != alua.NonOptimized || b.Preferred || b.Ports[0] != 2 {
			t.Errorf("%s: second group %+v", name, b)
		}
	}
	if r, err := parseRTPG(unhex(t, "00000018"+groups[:30])); err != nil || len(r.Groups) != 1 {
		t.Errorf("truncated: %+v, %v", r, err)
	}
}

func TestParseDeviceID(t *testing.T) {
	naa := "01030010" + "60000000000000000000000000000abc"
	raw := "0083002c" + "02010004" + "47454d00" + naa + "01940004" + "00000002" + "01950004" + "00000002"
	id, err := parseDeviceID(unhex(t, raw))
	if err != nil || id.wwid != "60000000000000000000000000000abc" || id.port != 2 || !id.hasGroup || id.group != 2 {
		t.Fatalf("%+v, %v", id, err)
	}
	if _, err := parseDeviceID(unhex(t, "0083001001030010600000")); !errors.Is(err, ErrProtocol) {
		t.Fatalf("truncated designator: %v", err)
	}
}
