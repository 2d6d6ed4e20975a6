package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"slices"
)

// bbolt maps its file into memory and follows what it finds there: a page number beyond the end of
// the file is a SIGBUS, a page that leads back to itself is a stack without end, and both end the
// process, even where a caller recovers. So the file is walked here before bbolt has it, by
// reading: everything that bbolt would follow is checked, and each page may be met once. bbolt's
// own Tx.Check needs the file mapped, and runs into both.
//
// The format is bbolt's version 2, in the byte order of the machine.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltHeader     = 16 // of a page: its number, flags, count of elements, pages that follow
	boltElement    = 16 // of a branch or leaf page
	boltMeta       = 64 // bytes of a meta page after the header
	boltBucket     = 16 // before the page of an inline bucket: its root page, a sequence
	boltMaxDepth   = 64
	boltNoFreelist = ^uint64(0)

	flagBranch   = 1
	flagLeaf     = 2
	flagFreelist = 16
	flagBucket   = 1 // of an element
)

var native = binary.NativeEndian

// itemFunc is called with each key and its value, in the order of the file. It must not keep the
// slices.
type itemFunc func(bucket string, key, value []byte) error

// metaPage is what a meta page says.
type metaPage struct {
	pageSize int64
	root     uint64 // page
	freelist uint64 // page
	pages    uint64 // that are or were in use: those from here on never were
	txid     uint64
}

// errNotBolt: the file never was a database, or its first bytes are not its own any more.
var errNotBolt = errors.New("it is not a bbolt database")

func parseMetaPage(b []byte) (m metaPage, err error) {
	b = b[boltHeader:]
	h := fnv.New64a()
	_, _ = h.Write(b[:boltMeta-8])
	switch {
	case native.Uint32(b) != boltMagic:
		return m, errNotBolt
	case native.Uint64(b[boltMeta-8:]) != h.Sum64():
		return m, errors.New("its checksum is wrong")
	case native.Uint32(b[4:]) != boltVersion:
		return m, fmt.Errorf("%w: its bbolt version is %d, this release supports %d; run the release that wrote it, or a newer one", ErrNewer, native.Uint32(b[4:]), boltVersion)
	}
	m = metaPage{pageSize: int64(native.Uint32(b[8:])), root: native.Uint64(b[16:]), freelist: native.Uint64(b[32:]), pages: native.Uint64(b[40:]), txid: native.Uint64(b[48:])}
	if m.pageSize < 512 || m.pageSize > 1<<24 || m.pageSize&(m.pageSize-1) != 0 {
		return m, fmt.Errorf("a page has %d bytes", m.pageSize)
	}
	return m, nil
}

// checker walks one file.
type checker struct {
	r    io.ReaderAt
	meta metaPage
	seen []uint64 // a bit for each page that was met
	bufs [boltMaxDepth + 1][]byte
	item itemFunc
}

// checkBolt walks a bbolt file of size bytes and returns the number of its last transaction. Both
// meta pages have to be whole: bbolt continues with the other one where one is not, and takes back
// the last transaction without an error. A commit that a crash cuts short leaves none that is torn:
// what counts of a meta page lies in one sector.
func checkBolt(r io.ReaderAt, size int64, item itemFunc) (txid uint64, err error) {
	c := &checker{r: r, item: item}
	if c.meta, err = c.metaPages(size); err != nil {
		return 0, err
	}
	if c.meta.pages < 4 || c.meta.pages > uint64(size/c.meta.pageSize) {
		return 0, fmt.Errorf("it has %d bytes, but %d pages of %d bytes are in use: it was truncated", size, c.meta.pages, c.meta.pageSize)
	}
	c.seen = make([]uint64, c.meta.pages/64+1)
	c.seen[0] = 3 // the meta pages
	if err := c.walk(c.meta.root, "", nil, nil, 0); err != nil {
		return 0, err
	}
	if err := c.freelist(); err != nil {
		return 0, err
	}
	for p := range c.meta.pages {
		if c.seen[p/64]&(1<<(p%64)) == 0 {
			return 0, fmt.Errorf("page %d is neither in use nor free", p)
		}
	}
	return c.meta.txid, nil
}

// metaPages reads both and returns the one that counts.
func (c *checker) metaPages(size int64) (m metaPage, err error) {
	const head = boltHeader + boltMeta
	buf := make([]byte, head)
	if size < 2*head {
		return m, fmt.Errorf("it has %d bytes, which is too short for a database", size)
	}
	first, err := c.metaPage(buf, 0)
	if err != nil {
		return m, err
	}
	if size < 2*first.pageSize {
		return m, fmt.Errorf("it has %d bytes, but a page has %d bytes: it was truncated", size, first.pageSize)
	}
	second, err := c.metaPage(buf, first.pageSize)
	switch {
	case err != nil:
		return m, err
	case second.pageSize != first.pageSize:
		return m, fmt.Errorf("its meta pages give different page sizes, %d and %d bytes", first.pageSize, second.pageSize)
	case second.txid > first.txid:
		return second, nil
	}
	return first, nil
}

func (c *checker) metaPage(buf []byte, at int64) (metaPage, error) {
	if err := c.read(buf, at); err != nil {
		return metaPage{}, fmt.Errorf("meta page %d: %w", min(at, 1), err)
	}
	m, err := parseMetaPage(buf)
	if err != nil && !errors.Is(err, errNotBolt) && !errors.Is(err, ErrNewer) {
		err = fmt.Errorf("meta page %d: %w", min(at, 1), err)
	}
	return m, err
}

// read fills b; where the file ends before, that is an error.
func (c *checker) read(b []byte, at int64) error {
	_, err := io.ReadFull(io.NewSectionReader(c.r, at, int64(len(b))), b)
	var p *fs.PathError
	switch {
	case errors.As(err, &p):
		return fmt.Errorf("it cannot be read: %w", p.Err) // whose path is known
	case err != nil:
		return fmt.Errorf("it cannot be read: %w", err)
	}
	return nil
}

// take marks a page and those that follow it as met.
func (c *checker) take(id, follow uint64) error {
	if id < 2 || id >= c.meta.pages || follow >= c.meta.pages-id {
		return fmt.Errorf("page %d, with %d overflow pages, is outside of the %d pages in use", id, follow, c.meta.pages)
	}
	for p := id; p <= id+follow; p++ {
		if c.seen[p/64]&(1<<(p%64)) != 0 {
			return fmt.Errorf("page %d is used twice", p)
		}
		c.seen[p/64] |= 1 << (p % 64)
	}
	return nil
}

// page reads a page with those that follow it, each for the first time. What it returns stays until
// the next one of the same depth.
func (c *checker) page(id uint64, depth int) ([]byte, error) {
	if id < 2 || id >= c.meta.pages {
		return nil, fmt.Errorf("page %d is outside of the %d pages in use", id, c.meta.pages)
	}
	if depth > boltMaxDepth {
		return nil, fmt.Errorf("page %d is at depth %d, which is too deep", id, depth)
	}
	size := int(c.meta.pageSize)
	b := slices.Grow(c.bufs[depth][:0], size)[:size]
	c.bufs[depth] = b
	if err := c.read(b, int64(id)*c.meta.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if at := native.Uint64(b); at != id {
		return nil, fmt.Errorf("page %d has the page number %d", id, at)
	}
	follow := uint64(native.Uint32(b[12:]))
	if err := c.take(id, follow); err != nil {
		return nil, err
	}
	if follow > 0 {
		size *= 1 + int(follow) // which the file has
		b = slices.Grow(b, size)[:size]
		c.bufs[depth] = b
		if err := c.read(b[c.meta.pageSize:], int64(id+1)*c.meta.pageSize); err != nil {
			return nil, fmt.Errorf("page %d: %w", id, err)
		}
	}
	return b, nil
}

// walk checks a tree of pages, the first of whose keys has to be first (nil: any), all of them
// below high (nil: no bound). bucket is empty for the tree of buckets. bbolt itself takes a page
// that begins behind what leads to it, but puts it into its parent a second time when it is
// changed.
func (c *checker) walk(id uint64, bucket string, first, high []byte, depth int) error {
	b, err := c.page(id, depth)
	if err != nil {
		return err
	}
	switch flags := native.Uint16(b[8:]); flags {
	case flagBranch:
		err = c.branch(b, bucket, first, high, depth)
	case flagLeaf:
		err = c.leaf(b, bucket, first, high, depth)
	default:
		return fmt.Errorf("page %d has flags %#x", id, flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (c *checker) branch(b []byte, bucket string, first, high []byte, depth int) error {
	keys, err := elements(b, func(e []byte) (pos, ksize, vsize uint32) { return native.Uint32(e), native.Uint32(e[4:]), 0 })
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return errors.New("it has no elements")
	}
	if err := inOrder(keys, first, high); err != nil {
		return err
	}
	for i, k := range keys {
		below := high
		if i+1 < len(keys) {
			below = keys[i+1].key
		}
		if err := c.walk(native.Uint64(b[boltHeader+i*boltElement+8:]), bucket, k.key, below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) leaf(b []byte, bucket string, first, high []byte, depth int) error {
	items, err := elements(b, func(e []byte) (pos, ksize, vsize uint32) {
		return native.Uint32(e[4:]), native.Uint32(e[8:]), native.Uint32(e[12:])
	})
	if err != nil {
		return err
	}
	if err := inOrder(items, first, high); err != nil {
		return err
	}
	for i, x := range items {
		flags := native.Uint32(b[boltHeader+i*boltElement:])
		switch {
		case bucket == "" && flags == flagBucket:
			err = c.bucket(string(x.key), x.value, depth+1)
		case bucket != "" && flags == 0:
			err = c.item(bucket, x.key, x.value)
		default:
			err = fmt.Errorf("element %d has flags %#x", i, flags)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket: a tree of its own, or, if it is small, a page within its element.
func (c *checker) bucket(name string, v []byte, depth int) error {
	if len(v) < boltBucket {
		return fmt.Errorf("bucket %q has %d bytes", name, len(v))
	}
	if root := native.Uint64(v); root != 0 {
		return c.walk(root, name, nil, nil, depth)
	}
	v = v[boltBucket:]
	if len(v) < boltHeader || native.Uint16(v[8:]) != flagLeaf || native.Uint32(v[12:]) != 0 {
		return fmt.Errorf("bucket %q has no page", name)
	}
	if err := c.leaf(v, name, nil, nil, depth); err != nil {
		return fmt.Errorf("bucket %q: %w", name, err)
	}
	return nil
}

// element of a page.
type element struct{ key, value []byte }

// elements finds the elements of a page. Their keys and values follow each other without gaps, as
// bbolt writes them.
func elements(b []byte, parse func(e []byte) (pos, ksize, vsize uint32)) ([]element, error) {
	n := int(native.Uint16(b[10:]))
	at := boltHeader + n*boltElement
	if at > len(b) {
		return nil, fmt.Errorf("it has %d elements, which do not fit into the page", n)
	}
	out := make([]element, n)
	for i := range out {
		e := boltHeader + i*boltElement
		pos, ksize, vsize := parse(b[e:])
		end := int64(at) + int64(ksize) + int64(vsize)
		if int64(e)+int64(pos) != int64(at) || ksize == 0 || end > int64(len(b)) {
			return nil, fmt.Errorf("element %d of %d is at the wrong position", i, n)
		}
		k := at + int(ksize)
		out[i] = element{b[at:k:k], b[k:end:end]}
		at = int(end)
	}
	return out, nil
}

// inOrder checks that keys rise, from first on, if there is one, and below high.
func inOrder(list []element, first, high []byte) error {
	if first != nil && (len(list) == 0 || !bytes.Equal(list[0].key, first)) {
		return errors.New("its first key differs from the key in its parent page")
	}
	for i, x := range list {
		if i > 0 && bytes.Compare(list[i-1].key, x.key) >= 0 || high != nil && bytes.Compare(x.key, high) >= 0 {
			return fmt.Errorf("element %d of %d is out of order", i, len(list))
		}
	}
	return nil
}

// freelist checks that what it holds are the pages that are not in use.
func (c *checker) freelist() error {
	id := c.meta.freelist
	if id == boltNoFreelist {
		return errors.New("it has no free list")
	}
	b, err := c.page(id, 0)
	if err != nil {
		return fmt.Errorf("the free list: %w", err)
	}
	if flags := native.Uint16(b[8:]); flags != flagFreelist {
		return fmt.Errorf("the free list: page %d has flags %#x", id, flags)
	}
	n, list := uint64(native.Uint16(b[10:])), b[boltHeader:]
	if n == 0xFFFF { // then the first one is their number
		n, list = native.Uint64(list), list[8:]
	}
	if n > uint64(len(list)/8) {
		return fmt.Errorf("the free list: page %d has no room for %d entries", id, n)
	}
	for i := range n {
		if err := c.take(native.Uint64(list[8*i:]), 0); err != nil {
			return fmt.Errorf("the free list: %w", err)
		}
	}
	return nil
}
