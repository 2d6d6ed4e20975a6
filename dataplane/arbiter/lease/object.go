package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// LabelPair marks the Lease of a pair and holds the pair's name; the admission policy in
// config/policy looks for it.
const LabelPair = "gemel.storage/pair"

// Annotations of the Lease. The record counts. Epoch, generation and members repeat parts of it for
// the admission policy, whose language cannot parse JSON; they are written together and have to
// agree.
const (
	AnnotationRecord     = "gemel.storage/record"
	AnnotationEpoch      = "gemel.storage/epoch"
	AnnotationGeneration = "gemel.storage/generation"
	AnnotationMembers    = "gemel.storage/members" // "a", "b", "a,b" or "b,a": the chair comes first
	AnnotationWrites     = "gemel.storage/writes"  // tokens of the last writes, newest first, with commas between
)

// keptWrites is how many tokens stay on the object: a write whose answer was lost is found as long
// as fewer others have followed. A pair writes once per failure and never twice within a
// CompareAndSwap.
const keptWrites = 16

// object is the Lease as the API server has it. What this version does not know is kept and written
// back.
type object struct {
	raw, meta   map[string]json.RawMessage
	annotations map[string]string
	uid, rv     string
}

// decode reads a Lease; anything else is an error.
func decode(b []byte) (*object, error) {
	o := &object{}
	if err := json.Unmarshal(b, &o.raw); err != nil {
		return nil, fmt.Errorf("it is not a JSON object: %w", err)
	}
	var kind string
	_ = json.Unmarshal(o.raw["kind"], &kind)
	if kind != "Lease" {
		return nil, fmt.Errorf("its kind is %q, not Lease", kind)
	}
	if err := json.Unmarshal(o.raw["metadata"], &o.meta); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	for field, to := range map[string]any{"uid": &o.uid, "resourceVersion": &o.rv, "annotations": &o.annotations} {
		if v, ok := o.meta[field]; ok {
			if err := json.Unmarshal(v, to); err != nil {
				return nil, fmt.Errorf("metadata.%s: %w", field, err)
			}
		}
	}
	if o.uid == "" || o.rv == "" {
		return nil, errors.New("the Lease has no uid or no resourceVersion")
	}
	return o, nil
}

// version names one state of one object: a Lease that was deleted and made again has another uid.
func (o *object) version() string { return o.uid + "/" + o.rv }

// bare: no record was ever written, or all of it was taken away.
func (o *object) bare() bool {
	for _, k := range []string{AnnotationRecord, AnnotationEpoch, AnnotationGeneration, AnnotationMembers} {
		if _, ok := o.annotations[k]; ok {
			return false
		}
	}
	return true
}

// record is what the annotations say: arbiter.ErrNotFound if nothing, ErrDamaged if no record, or
// one of another pair.
func (o *object) record(cluster, name string) (pair.Record, error) {
	var rec pair.Record
	if o.bare() {
		return rec, arbiter.ErrNotFound
	}
	text, ok := o.annotations[AnnotationRecord]
	if !ok {
		return rec, fmt.Errorf("%w: the annotation %s is missing, but others of the record are present: restore it", ErrDamaged, AnnotationRecord)
	}
	if err := json.Unmarshal([]byte(text), &rec); err != nil {
		return pair.Record{}, fmt.Errorf("%w: annotation %s: %w", ErrDamaged, AnnotationRecord, err)
	}
	if err := rec.Validate(cluster, name); err != nil {
		return pair.Record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	for k, want := range mirrored(&rec) {
		if got := o.annotations[k]; got != want {
			return pair.Record{}, fmt.Errorf("%w: annotation %s is %q, but the record has %q: one of them was edited; restore the annotation", ErrDamaged, k, got, want)
		}
	}
	return rec, nil
}

// mirrored is what is repeated of a record.
func mirrored(rec *pair.Record) map[string]string {
	names := make([]string, len(rec.Members))
	for i, m := range rec.Members {
		names[i] = m.Node.String()
	}
	return map[string]string{
		AnnotationEpoch:      strconv.FormatUint(rec.Epoch, 10),
		AnnotationGeneration: strconv.FormatUint(rec.Generation, 10),
		AnnotationMembers:    strings.Join(names, ","),
	}
}

// successor is the body of an update from o to rec. now is for people who look at the object.
func (o *object) successor(rec *pair.Record, token string, now time.Time) ([]byte, error) {
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	notes := map[string]string{}
	for k, v := range o.annotations {
		notes[k] = v
	}
	for k, v := range mirrored(rec) {
		notes[k] = v
	}
	var old pair.Record
	if json.Unmarshal([]byte(notes[AnnotationRecord]), &old) != nil || !old.Equal(rec) {
		notes[AnnotationRecord] = string(text) // else letter by letter as it was: the policy compares text
	}
	notes[AnnotationWrites] = strings.Join(append([]string{token}, o.writes()[:min(len(o.writes()), keptWrites-1)]...), ",")

	spec := map[string]json.RawMessage{}
	if v, ok := o.raw["spec"]; ok {
		if err := json.Unmarshal(v, &spec); err != nil {
			return nil, fmt.Errorf("spec: %w", err)
		}
	}
	if spec == nil {
		spec = map[string]json.RawMessage{} // "spec": null
	}
	raw, meta := clone(o.raw), clone(o.meta)
	for _, x := range []struct {
		in  map[string]json.RawMessage
		key string
		val any
	}{
		{spec, "holderIdentity", notes[AnnotationMembers]},
		{spec, "leaseTransitions", min(rec.Epoch, math.MaxInt32)},
		{spec, "renewTime", now.UTC().Format("2006-01-02T15:04:05.000000Z07:00")},
		{meta, "annotations", notes},
		{raw, "spec", spec},
		{raw, "metadata", meta},
	} {
		if x.in[x.key], err = json.Marshal(x.val); err != nil {
			return nil, err
		}
	}
	return json.Marshal(raw)
}

func clone(m map[string]json.RawMessage) map[string]json.RawMessage {
	c := make(map[string]json.RawMessage, len(m)+1)
	for k, v := range m {
		c[k] = v
	}
	return c
}

func (o *object) writes() []string {
	if o.annotations[AnnotationWrites] == "" {
		return nil
	}
	return strings.Split(o.annotations[AnnotationWrites], ",")
}

// token is that of the last write, "" before the first.
func (o *object) token() string {
	if w := o.writes(); len(w) > 0 {
		return w[0]
	}
	return ""
}

// wrote reports whether the write with this token is among the last ones.
func (o *object) wrote(token string) bool { return slices.Contains(o.writes(), token) }

// follows reports whether the writes on o go back to base, so that one that is not among them has
// not landed in between.
func (o *object) follows(base *object) bool {
	if t := base.token(); t != "" {
		return o.wrote(t)
	}
	return len(o.writes()) < keptWrites
}
