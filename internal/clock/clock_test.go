package clock

import "testing"

func TestBoottimeDoesNotGoBack(t *testing.T) {
	last := Boottime()
	if last <= 0 {
		t.Fatal(last)
	}
	for range 1000 {
		now := Boottime()
		if now < last {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
}
