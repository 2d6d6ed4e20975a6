package nbd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestMalformedHandshakes(t *testing.T) {
	good := func(f *fake) { f.answer(answerInfo, exportInfo(fakeSize, 0)) }
	for name, x := range map[string]struct {
		want error
		play func(f *fake)
	}{
		"greeting":       {ErrProtocol, func(f *fake) { _, _ = f.Write(make([]byte, 18)) }},
		"old style":      {ErrProtocol, func(f *fake) { _, _ = f.Write([]byte("NBDMAGICIHAVEOPT\x00\x00")) }},
		"other magic":    {ErrProtocol, func(f *fake) { f.hello(); _, _ = f.Write(make([]byte, 20)) }},
		"too long":       {ErrProtocol, func(f *fake) { f.hello(); f.answer(answerInfo, make([]byte, maxAnswer+1)) }},
		"refused":        {ErrRefused, func(f *fake) { f.hello(); f.answer(answerErr|6, []byte("no such export")) }},
		"unknown kind":   {ErrProtocol, func(f *fake) { f.hello(); f.answer(77, nil) }},
		"no size":        {ErrProtocol, func(f *fake) { f.hello(); f.answer(answerAck, nil) }},
		"no information": {ErrProtocol, func(f *fake) { f.hello(); f.answer(answerInfo, nil) }},
		"short":          {ErrProtocol, func(f *fake) { f.hello(); f.answer(answerInfo, exportInfo(1, 0)[:11]) }},
		"negative size":  {ErrProtocol, func(f *fake) { f.hello(); f.answer(answerInfo, exportInfo(1<<63, 0)); f.answer(answerAck, nil) }},
		"block size 0":   {ErrProtocol, func(f *fake) { f.hello(); good(f); f.answer(answerInfo, blockInfo(0, 0, 0)); f.answer(answerAck, nil) }},
		"odd block size": {ErrProtocol, func(f *fake) {
			f.hello()
			good(f)
			f.answer(answerInfo, blockInfo(513, 0, 1<<20))
			f.answer(answerAck, nil)
		}},
		"answers for ever": {ErrProtocol, func(f *fake) { f.hello(); flood(f) }},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := Dial(ctx, "tcp", listen(t, x.play), "disk")
		cancel()
		if !errors.Is(err, x.want) {
			t.Errorf("%s: error %v, want %v", name, err, x.want)
		}
	}
}

func flood(f *fake) {
	for range maxAnswers + 1 {
		f.answer(answerInfo, []byte{0, 2}) // a description, which was not asked for
	}
}

func TestDialGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	address := listen(t, func(f *fake) {
		cancel(stop)
		_, _ = f.Read(make([]byte, 1)) // says nothing
	})
	if _, err := Dial(ctx, "tcp", address, "disk"); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
	if _, err := Dial(t.Context(), "tcp", listen(t, func(*fake) {}), strings.Repeat("x", maxName+1)); err == nil {
		t.Error("took a name that is too long")
	}
}
