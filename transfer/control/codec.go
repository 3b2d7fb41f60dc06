package control

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer/path"
)

// codec walks the fields of a message, to write them or to read them. Each message has one method,
// fields, that names its fields in order with their bounds; so the two directions cannot drift
// apart, and what was read always encodes to the same bytes. Errors stick: after the first, nothing
// more is written or read, and fields need no checks of their own (the model is the attribute
// decoder of github.com/mdlayher/netlink).
type codec struct {
	b      []byte // encoding: written so far; decoding: the whole body
	off    int    // decoding: bytes read
	encode bool
	what   string // for messages
	err    error
}

// fail notes the first error. The code is BadRequest on both sides: a session turns it into
// Protocol where the bad field belongs to the session itself.
func (c *codec) fail(field, format string, args ...any) {
	if c.err != nil {
		return
	}
	where := ""
	if !c.encode {
		where = fmt.Sprintf(" at byte %d of %d", c.off, len(c.b))
	}
	c.err = Errorf(BadRequest, "%s: %s%s: %s", c.what, field, where, fmt.Sprintf(format, args...))
}

// finish is called after the last field of a body that was read: nothing may be left.
func (c *codec) finish() error {
	if c.err == nil && !c.encode && c.off != len(c.b) {
		c.fail("end", "%d bytes left over", len(c.b)-c.off)
	}
	return c.err
}

// take reads n bytes, which alias the body.
func (c *codec) take(field string, n int) []byte {
	if c.err != nil {
		return nil
	}
	if n > len(c.b)-c.off {
		c.fail(field, "needs %d bytes, %d left", n, len(c.b)-c.off)
		return nil
	}
	p := c.b[c.off : c.off+n : c.off+n]
	c.off += n
	return p
}

func (c *codec) u8(field string, v *uint8) {
	if c.encode {
		c.b = append(c.b, *v)
	} else if p := c.take(field, 1); p != nil {
		*v = p[0]
	}
}

func (c *codec) u16(field string, v *uint16) {
	if c.encode {
		c.b = binary.BigEndian.AppendUint16(c.b, *v)
	} else if p := c.take(field, 2); p != nil {
		*v = binary.BigEndian.Uint16(p)
	}
}

func (c *codec) u32(field string, v *uint32) {
	if c.encode {
		c.b = binary.BigEndian.AppendUint32(c.b, *v)
	} else if p := c.take(field, 4); p != nil {
		*v = binary.BigEndian.Uint32(p)
	}
}

func (c *codec) u64(field string, v *uint64) {
	if c.encode {
		c.b = binary.BigEndian.AppendUint64(c.b, *v)
	} else if p := c.take(field, 8); p != nil {
		*v = binary.BigEndian.Uint64(p)
	}
}

func (c *codec) boolean(field string, v *bool) {
	var x uint8
	if *v {
		x = 1
	}
	c.u8(field, &x)
	if x > 1 {
		c.off--
		c.fail(field, "is %d, expected 0 or 1", x)
		return
	}
	*v = x == 1
}

// fixed is as many bytes as v has.
func (c *codec) fixed(field string, v []byte) {
	if c.encode {
		c.b = append(c.b, v...)
	} else if p := c.take(field, len(v)); p != nil {
		copy(v, p)
	}
}

// ids is a counted list of ids.
func (c *codec) ids(field string, v *[][16]byte, max int) {
	list(c, field, v, max, 16, func(id *[16]byte) { c.fixed(field, id[:]) })
}

// list is a counted list of at most max elements that take at least size bytes each: one that was
// read is never longer than the body can hold, so memory for it may be taken at once.
func list[T any](c *codec, field string, v *[]T, max, size int, element func(*T)) {
	at, n := c.off, len(*v)
	if !c.length(field, &n, 0, max) {
		return
	}
	if !c.encode {
		if left := len(c.b) - c.off; n > left/size {
			c.off = at
			c.fail(field, "%d elements of at least %d bytes, %d bytes left", n, size, left)
			return
		}
		*v = nil
		if n > 0 {
			*v = make([]T, n)
		}
	}
	for i := 0; i < n && c.err == nil; i++ {
		element(&(*v)[i])
	}
}

func (c *codec) key(field string, k *path.Key) {
	if c.encode {
		c.b = k.Append(c.b)
	} else if p := c.take(field, path.KeySize); p != nil {
		*k = path.ParseKey(p)
	}
}

// length writes or reads the length of a string or list: one byte if max fits into one, otherwise
// two.
func (c *codec) length(field string, n *int, min, max int) bool {
	if c.err != nil {
		return false
	}
	at := c.off
	if !c.encode {
		if max <= 0xff {
			var v uint8
			c.u8(field, &v)
			*n = int(v)
		} else {
			var v uint16
			c.u16(field, &v)
			*n = int(v)
		}
		if c.err != nil {
			return false
		}
	}
	if *n < min || *n > max {
		c.off = at
		c.fail(field, "length %d, expected %d to %d", *n, min, max)
		return false
	}
	if c.encode {
		if max <= 0xff {
			c.b = append(c.b, byte(*n))
		} else {
			c.b = binary.BigEndian.AppendUint16(c.b, uint16(*n))
		}
	}
	return true
}

// text is a UTF-8 string of min to max bytes.
func (c *codec) text(field string, s *string, min, max int) {
	n := len(*s)
	if !c.length(field, &n, min, max) {
		return
	}
	if c.encode {
		if !utf8.ValidString(*s) {
			c.fail(field, "is not UTF-8")
			return
		}
		c.b = append(c.b, *s...)
		return
	}
	p := c.take(field, n)
	if c.err != nil {
		return
	}
	if !utf8.Valid(p) {
		c.off -= n
		c.fail(field, "is not UTF-8")
		return
	}
	*s = string(p)
}

// blob is a counted byte string of at most max bytes. What is read aliases the body; nil when
// empty.
func (c *codec) blob(field string, p *[]byte, max int) {
	n := len(*p)
	if c.length(field, &n, 0, max) {
		c.bytes(field, p, n)
	}
}

// rest is the rest of the body, at most max bytes. What is read aliases the body; nil when empty.
func (c *codec) rest(field string, p *[]byte, max int) {
	if c.err != nil {
		return
	}
	n := len(*p)
	if !c.encode {
		n = len(c.b) - c.off
	}
	if n > max {
		c.fail(field, "%d bytes, at most %d", n, max)
		return
	}
	c.bytes(field, p, n)
}

// bytes are n bytes. What is read aliases the body; nil when there are none.
func (c *codec) bytes(field string, p *[]byte, n int) {
	if c.encode {
		c.b = append(c.b, *p...)
		return
	}
	*p = nil
	if b := c.take(field, n); len(b) > 0 {
		*p = b
	}
}

// desc is an export. Only an entry may be one that the peer has no right to, and then it has no
// key.
func (c *codec) desc(d *path.Desc, entry bool) {
	c.key("key", &d.Key)
	c.u64("size", &d.Size)
	at := c.off
	c.u8("rights", (*uint8)(&d.Rights))
	none := entry && d.Key == path.Key{}
	if c.err == nil && (d.Rights == 0 && !none || d.Rights&^(path.Read|path.Write) != 0) {
		c.off = at
		c.fail("rights", "%d, expected 1 (read), 2 (write) or 3 (both); in an entry without a key also 0",
			uint8(d.Rights))
	}
	c.boolean("whole", &d.Whole)
	c.boolean("device", &d.Device)
}
