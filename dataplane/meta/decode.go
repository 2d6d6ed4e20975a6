package meta

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNewer: what was to be read says something that this release does not know. A node that passed
// over it would hold, do or write back something else than the node that wrote it.
var ErrNewer = errors.New("it was written by a newer release")

// Decode reads JSON that another release may have written: the state, entries of the log. A field
// that into does not have is ErrNewer, and named.
func Decode(b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil { // it can be read otherwise, so it is that
		return fmt.Errorf("%w: %w", ErrNewer, err)
	}
	return nil
}
