package kernel

import (
	"strings"
	"testing"
	"time"
)

// Every keyword and brace on its own line: what is not, multipath skips without a word.
func TestHazard8DropIn(t *testing.T) {
	for _, polling := range []bool{true, false} {
		text := string(renderDropIn(30, polling))
		for line := range strings.SplitSeq(text, "\n") {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			if n := strings.Count(line, "{") + strings.Count(line, "}"); n > 1 || n == 1 && !strings.HasSuffix(line, "{") && line != "}" {
				t.Errorf("%q", line)
			}
		}
		if strings.Contains(text, "polling_interval") != polling {
			t.Error(text)
		}
		if l := verifyConfig(parseConfig(text), settings(30)); len(l) > 0 {
			t.Error(l)
		}
	}
}

// Hazard 7: the administrator's choices stay, and those that cannot are named with what fixes them.
func TestHazard7Config(t *testing.T) {
	for text, want := range map[string]int{
		"":                                       0,
		"# polling_interval 3":                   0,
		"defaults {\n\tpolling_interval 7\n}\n":  7,
		"defaults {\n polling_interval \"8\"\n}": 8,
		"defaults {\n max_polling_interval 9\n}": defaultPolling,
		"defaults {\n polling_interval x\n}":     defaultPolling,
	} {
		if got := chosenPolling([][]byte{nil, []byte(text)}); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	for _, c := range []struct {
		deadline time.Duration
		polling  int
		want     int
	}{{30 * time.Second, 1, 30}, {30 * time.Second, 5, 6}, {31 * time.Second, 5, 7}, {time.Second, 5, 2}} {
		if got := noPathRetry(c.deadline, c.polling); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	ours := string(renderDropIn(30, true))
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"none of ours", "devices {\n device {\n vendor \"OTHER\"\n product \"ALUA LUN\"\n}\n}\n", []string{"does not read"}},
		{"overridden", ours + "overrides {\n\tno_path_retry \"fail\"\n}\n", []string{"no_path_retry", "overrides"}},
		{"another device section", ours + "devices {\n device {\n vendor \"GEMEL\"\n product \"ALUA LUN\"\n prio \"const\"\n}\n}\n", []string{"prio"}},
		{"all devices barred", ours + "blacklist {\n\tdevnode \".*\"\n}\n", []string{"devnode"}},
		{"all WWIDs barred", ours + "blacklist {\n\twwid \".*\"\n}\n", []string{"wwid", "3602474d"}},
		{"our vendor barred", ours + "blacklist {\n\tdevice {\n\t\tvendor \"GEM.*\"\n\t}\n}\n", []string{"device"}},
		{"iSCSI barred", ours + "blacklist {\n\tprotocol \"scsi:iscsi\"\n}\n", []string{"protocol"}},
	} {
		got := verifyConfig(parseConfig(c.text), settings(30))
		if len(got) == 0 {
			t.Errorf("%s: nothing", c.name)
		}
		for _, w := range c.want {
			if len(got) > 0 && !strings.Contains(got[0].String(), w) {
				t.Errorf("%s: %q lacks %q", c.name, got, w)
			}
		}
	}
	for name, text := range map[string]string{
		"the built-in list":  "blacklist {\n\tdevnode \"!^(sd[a-z]|dasd[a-z]|nvme[0-9])\"\n\tdevice {\n\t\tvendor \"SGI\"\n\t\tproduct \"Universal Xport\"\n\t}\n}\n",
		"excepted":           "blacklist {\n\twwid \".*\"\n}\nblacklist_exceptions {\n\twwid \"^3602474d\"\n}\n",
		"what is not broken": "blacklist {\n\twwid \"(\"\n}\n",
	} {
		if got := verifyConfig(parseConfig(ours+text), settings(30)); len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}
