package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// The handshake (doc/proto.md of the NBD project): fixed newstyle, one option, NBD_OPT_GO.
const (
	magicInit   = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption = 0x49484156454f5054 // "IHAVEOPT"
	magicAnswer = 0x0003e889045565a9

	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1

	optionGo      = 7
	answerAck     = 1
	answerInfo    = 3
	answerErr     = 1 << 31 // and above: an error
	infoExport    = 0
	infoBlockSize = 3

	maxAnswer  = 64 << 10 // bytes of an answer to an option that are taken
	maxAnswers = 64
	maxName    = 4096 // bytes of an export's name, a limit of the protocol
)

// Transmission flags of an export.
const (
	canFlush  = 1 << 2
	canFUA    = 1 << 3
	canTrim   = 1 << 5
	canZeroes = 1 << 6
	readOnly  = 1 << 1
)

// export is what the server says about it.
type export struct {
	size       int64
	flags      uint16
	block      uint32 // requests are multiples of it
	maxPayload uint32
}

func handshake(c io.ReadWriter, name string) (export, error) {
	e := export{size: -1, block: 1, maxPayload: 32 << 20} // without a statement of the server
	if len(name) > maxName {
		return e, fmt.Errorf("export name has %d bytes, at most %d are possible", len(name), maxName)
	}
	var hello [18]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return e, fmt.Errorf("greeting: %w", err)
	}
	flags := binary.BigEndian.Uint16(hello[16:])
	if binary.BigEndian.Uint64(hello[:]) != magicInit || binary.BigEndian.Uint64(hello[8:]) != magicOption {
		return e, fmt.Errorf("%w: greeting %x", ErrProtocol, hello[:16])
	}
	if flags&flagFixedNewstyle == 0 {
		return e, fmt.Errorf("%w: the server does not have the fixed newstyle handshake", ErrProtocol)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(flags&(flagFixedNewstyle|flagNoZeroes)))
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint32(b, optionGo)
	b = binary.BigEndian.AppendUint32(b, uint32(4+len(name)+2+2))
	b = binary.BigEndian.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint16(b, 1) // one request for information
	b = binary.BigEndian.AppendUint16(b, infoBlockSize)
	if _, err := c.Write(b); err != nil {
		return e, err
	}
	for range maxAnswers {
		kind, data, err := answer(c)
		if err != nil {
			return e, err
		}
		switch {
		case kind == answerAck:
			return e, e.check()
		case kind == answerInfo:
			err = e.inform(data)
		case kind&answerErr != 0:
			err = fmt.Errorf("%w: error %d: %.200q", ErrRefused, kind&^answerErr, data)
		default:
			err = fmt.Errorf("%w: answer of kind %d to NBD_OPT_GO", ErrProtocol, kind)
		}
		if err != nil {
			return e, err
		}
	}
	return e, fmt.Errorf("%w: more than %d answers to one option", ErrProtocol, maxAnswers)
}

func answer(r io.Reader) (kind uint32, data []byte, err error) {
	var head [20]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("answer to NBD_OPT_GO: %w", err)
	}
	option, n := binary.BigEndian.Uint32(head[8:]), binary.BigEndian.Uint32(head[16:])
	if binary.BigEndian.Uint64(head[:]) != magicAnswer || option != optionGo || n > maxAnswer {
		return 0, nil, fmt.Errorf("%w: answer %x to NBD_OPT_GO", ErrProtocol, head)
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, nil, fmt.Errorf("answer to NBD_OPT_GO: %w", err)
	}
	return binary.BigEndian.Uint32(head[12:]), data, nil
}

func (e *export) inform(data []byte) error {
	if len(data) < 2 {
		return fmt.Errorf("%w: information of %d bytes", ErrProtocol, len(data))
	}
	kind, data := binary.BigEndian.Uint16(data), data[2:]
	want := map[uint16]int{infoExport: 10, infoBlockSize: 12}[kind]
	switch {
	case want == 0: // was not asked for, may come
		return nil
	case len(data) != want:
		return fmt.Errorf("%w: information %d of %d bytes, want %d", ErrProtocol, kind, len(data), want)
	case kind == infoExport:
		e.size, e.flags = int64(binary.BigEndian.Uint64(data)), binary.BigEndian.Uint16(data[8:])
	default:
		e.block, e.maxPayload = binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[8:])
	}
	return nil
}

func (e *export) check() error {
	if e.size < 0 {
		return fmt.Errorf("%w: the server does not say the export's size", ErrProtocol)
	}
	if e.block == 0 || e.block&(e.block-1) != 0 || e.block > 64<<10 || e.maxPayload < e.block {
		return fmt.Errorf("%w: block size %d, largest request %d", ErrProtocol, e.block, e.maxPayload)
	}
	return nil
}

// Errors of clients. Test for them with errors.Is; what the server answers to a request is a
// syscall.Errno.
var (
	ErrProtocol = errors.New("NBD protocol error by the server")
	ErrRefused  = errors.New("the server refuses the export")
	ErrLost     = errors.New("connection lost")
	ErrClosed   = errors.New("closed")
)

// errnos are the errors that the protocol knows; they have Linux' numbers.
var errnos = []uint32{1, 5, 12, 22, 28, 75, 95, 108}

func known(errno uint32) bool { return slices.Contains(errnos, errno) }
