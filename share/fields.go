package share

import (
	"io/fs"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// fields reads what a peer has sent, one field after another. Behind a field that is not all there,
// or that a reader of it does not expect, nothing is left to be read, and all else is zero.
type fields struct {
	b    []byte // that are not read yet
	bad  bool
	size int // of all
}

func fieldsOf(b []byte) *fields { return &fields{b: b, size: len(b)} }

// expect makes the whole bad unless ok.
func (f *fields) expect(ok bool) {
	if f.bad = f.bad || !ok; f.bad {
		f.b = nil
	}
}

// end reports whether all was read, and nothing was bad.
func (f *fields) end() bool { return !f.bad && len(f.b) == 0 }

// err is nil at the end.
func (f *fields) err(what string) error {
	if f.end() {
		return nil
	}
	return control.Errorf(control.BadRequest, "malformed %s (%d bytes)", what, f.size)
}

// take reads so many bytes; nil: they are not there.
func (f *fields) take(n int) (b []byte) {
	if f.expect(n <= len(f.b)); !f.bad {
		b, f.b = f.b[:n], f.b[n:]
	}
	return b
}

// num reads a big-endian number of so many bytes.
func (f *fields) num(size int) (n uint64) {
	for _, c := range f.take(size) {
		n = n<<8 | uint64(c)
	}
	return n
}

func (f *fields) byte() byte { return byte(f.num(1)) }

// flag reads a byte that is 0 or 1.
func (f *fields) flag() bool {
	b := f.byte()
	f.expect(b <= 1)
	return b == 1
}

// sized reads a text behind its length, a number of so many bytes.
func (f *fields) sized(size int) string { return string(f.take(int(f.num(size)))) }

// text is sized(1) of UTF-8.
func (f *fields) text() string {
	s := f.sized(1)
	f.expect(utf8.ValidString(s))
	return s
}

// rest reads UTF-8 to the end.
func (f *fields) rest(least, most int) string {
	s := string(f.take(len(f.b)))
	f.expect(len(s) >= least && len(s) <= most && utf8.ValidString(s))
	return s
}

func (f *fields) hash() (h [16]byte) {
	copy(h[:], f.take(len(h)))
	return h
}

func (f *fields) key() (k path.Key) {
	if b := f.take(path.KeySize); b != nil {
		k = path.ParseKey(b)
	}
	return k
}

func (f *fields) like() like {
	l := like{time.Unix(0, int64(f.num(8))), fs.FileMode(f.num(2))}
	f.expect(l.mode&^fs.ModePerm == 0)
	return l
}

// names reads to the end what appendNames appends.
func (f *fields) names() (names []statName) {
	for len(f.b) > 0 {
		n := statName{f.text(), f.hash()}
		names = append(names, n)
		f.expect(n.name != "" && len(names) <= maxStat)
	}
	return names
}
