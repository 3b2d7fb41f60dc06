package control

import (
	"fmt"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer/path"
)

// Names asks for the names that begin with Prefix, in byte order, after the name After, as List
// does. The answer is without what List says for transfers, keys, generations and tags, which no
// compression makes smaller.
type Names struct {
	Prefix string // at most MaxName bytes
	After  string // at most MaxName bytes; "" begins at the first
}

// Method is MethodNames.
func (*Names) Method() Method { return MethodNames }
func (*Names) name() string   { return "names" }

func (m *Names) fields(c *codec) {
	c.text("prefix", &m.Prefix, 0, MaxName)
	c.text("after", &m.After, 0, MaxName)
}

// NamesPage is the answer: as many names as fit, compressed. NewNamesPage makes one, Entries reads
// it.
type NamesPage struct {
	More bool // there are further names: ask again, after the last one
	list packed
}

func (*NamesPage) name() string { return "names page" }

func (m *NamesPage) fields(c *codec) {
	c.boolean("more", &m.More)
	m.list.fields(c)
}

// MinNamed is the size in bytes of the smallest entry on a page before it is compressed.
const MinNamed = (1 + 1 + 1) + 8 + (1 + 2)

// NewNamesPage packs the names, sizes, rights and tensors of entries into an answer whose frame
// body is at most body bytes (Session.MaxBody); more says that there are further ones. The error
// matches ErrTooLarge when they do not fit: take fewer.
func NewNamesPage(entries []Entry, more bool, body int) (*NamesPage, error) {
	c := codec{encode: true, what: "names page", b: make([]byte, 0, len(entries)*(MinNamed+8))}
	n := uint32(len(entries))
	c.u32("count", &n)
	before := ""
	for i := range entries { // columns, for what is the same in many entries
		name := entries[i].Name
		same := uint8(shared(before, name))
		c.u8("shared", &same)
		c.part("rest of a name", name[same:])
		before = name
	}
	for i := range entries {
		c.u64("size", &entries[i].Desc.Size)
	}
	for i := range entries {
		c.u8("rights", (*uint8)(&entries[i].Desc.Rights))
		c.blob("tensor", &entries[i].Tensor, MaxTensor)
	}
	if c.err != nil {
		return nil, c.err
	}
	list, err := pack(c.b, body-packedOverhead-1)
	if err != nil {
		return nil, fmt.Errorf("control: %d names: %w", n, err)
	}
	return &NamesPage{more, *list}, nil
}

// shared is how many bytes two names begin with alike; at most as many as one byte can count.
func shared(a, b string) (n int) {
	for n < min(len(a), len(b), MaxName) && a[n] == b[n] {
		n++
	}
	return n
}

// part writes a length of one byte and bytes, which need not be UTF-8 by themselves.
func (c *codec) part(field, s string) {
	n := len(s)
	if c.length(field, &n, 0, MaxName) {
		c.b = append(c.b, s...)
	}
}

// Entries reads the page. Keys, generations and tags are zeros. Memory is taken for what is really
// there. The error matches BadRequest.
func (m *NamesPage) Entries() ([]Entry, error) {
	b, err := m.list.document(m.name())
	if err != nil {
		return nil, err
	}
	c := codec{b: b, what: m.name()}
	var n uint32
	c.u32("count", &n)
	if int64(n)*MinNamed > int64(len(b)) {
		c.fail("count", "%d names in %d bytes", n, len(b))
	}
	if c.err != nil {
		return nil, c.err
	}
	out := make([]Entry, n)
	before := ""
	for i := range out {
		var same uint8
		var rest []byte
		c.u8("shared", &same)
		c.blob("rest of a name", &rest, MaxName)
		if c.err != nil {
			return nil, c.err
		}
		if n := int(same) + len(rest); int(same) > len(before) || n == 0 || n > MaxName {
			c.fail("shared", "%d bytes of a name of %d, and %d more", same, len(before), len(rest))
			return nil, c.err
		}
		before = before[:same] + string(rest)
		if !utf8.ValidString(before) {
			c.fail("name", "is not UTF-8")
			return nil, c.err
		}
		out[i].Name = before
	}
	for i := range out {
		c.u64("size", &out[i].Desc.Size)
	}
	for i := range out {
		e := &out[i]
		c.u8("rights", (*uint8)(&e.Desc.Rights))
		if c.err == nil && e.Desc.Rights&^(path.Read|path.Write) != 0 {
			c.fail("rights", "%d, expected 0 to 3", e.Desc.Rights)
		}
		c.blob("tensor", &e.Tensor, MaxTensor)
	}
	if err := c.finish(); err != nil {
		return nil, err
	}
	return out, nil
}
