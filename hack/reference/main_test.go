package main

import (
	"strings"
	"testing"
)

func TestFlagsOfEveryCommandAreListed(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "of this machine")
	text, err := flags()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n## gemel-target\n", "\n### gemel-target force\n", "--accept-data-loss", "\n## gemel-csi\n", "\n### gemel-csi holder-agent\n",
		"\n## gemel-operator\n", "--leader-elect", "\n## kubectl-gemel\n", "\n### kubectl-gemel pair promote\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{"of this machine", "attach-holder", "### gemel-target completion"} {
		if strings.Contains(text, not) {
			t.Errorf("the page has %q", not)
		}
	}
}
