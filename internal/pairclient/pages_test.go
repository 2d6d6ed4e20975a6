package pairclient

import (
	"errors"
	"slices"
	"testing"
)

func TestPagesEndAtAnErrorOrWhenEnough(t *testing.T) {
	away := errors.New("away")
	all := []string{"a", "b", "c", "d", "e"}
	for name, c := range map[string]struct {
		fail, stop string // the page after it fails; what is enough
		want       []string
		err        error
	}{
		"all":           {want: all},
		"one fails":     {fail: "b", want: []string{"a", "b"}, err: away},
		"enough":        {stop: "c", want: []string{"a", "b", "c"}},
		"the first one": {fail: "none", err: away},
	} {
		asked := 0
		var got []string
		var err error
		for x, e := range pages(func(after string) ([]*string, string, error) {
			asked++
			if c.fail != "" && (after == c.fail || after == "" && c.fail == "none") {
				return nil, "", away
			}
			from := slices.Index(all, after) + 1
			var page []*string
			for i := from; i < min(from+2, len(all)); i++ {
				page = append(page, &all[i])
			}
			if from+2 >= len(all) {
				return page, "", nil
			}
			return page, *page[1], nil
		}) {
			if err = e; e != nil {
				break
			}
			if got = append(got, *x); *x == c.stop {
				break
			}
		}
		if !slices.Equal(got, c.want) || !errors.Is(err, c.err) || asked > 3 {
			t.Errorf("%s: %q, %v after %d pages", name, got, err, asked)
		}
	}
}
