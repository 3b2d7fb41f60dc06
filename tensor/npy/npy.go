package npy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/tensor"
)

const (
	magic = "\x93NUMPY"
	// maxHeader bounds what is copied and scanned. numpy itself refuses headers above 10,000 bytes
	// unless its caller trusts them; those it writes for the types of package tensor stay below
	// 1,000.
	maxHeader = 1 << 16
	// align is the multiple of bytes at which numpy, and Write, let the data begin.
	align = 64
)

// ErrBigEndian is what Parse and ParseNext answer, wrapped, for big-endian data: use ParseCopy.
var ErrBigEndian = errors.New("big-endian data have no view; ParseCopy swaps them into fresh memory")

// Parse reads one file from memory. The tensor, which has no name, is a view of b. Failures wrap an
// *Error, those for big-endian data ErrBigEndian as well. Bytes behind the array are an error: see
// ParseNext.
func Parse(b []byte) (tensor.Tensor, error) {
	t, rest, err := ParseNext(b)
	if err != nil {
		return tensor.Tensor{}, err
	}
	if len(rest) > 0 {
		return tensor.Tensor{}, &Error{int64(len(b) - len(rest)),
			fmt.Sprintf("%d bytes behind the array; expected the file to end here", len(rest))}
	}
	return t, nil
}

// ParseNext reads the first array of b and returns what is behind it: numpy can save several arrays
// to one file. Offsets in errors count from the beginning of b.
func ParseNext(b []byte) (t tensor.Tensor, rest []byte, err error) {
	h, desc, data, err := parse(b)
	if err != nil {
		return tensor.Tensor{}, nil, err
	}
	if h.bigEndian {
		where := &Error{h.descrAt, fmt.Sprintf("type '%s' is big-endian", h.descr)}
		return tensor.Tensor{}, nil, fmt.Errorf("%w: %w", where, ErrBigEndian)
	}
	return view(desc, data)
}

// ParseCopy reads one file from memory like Parse, but into memory of its own, so that b may go
// away. Big-endian data become little-endian.
func ParseCopy(b []byte) (tensor.Tensor, error) {
	h, desc, data, err := parse(b)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t, rest, err := view(desc, data)
	if err != nil {
		return tensor.Tensor{}, err
	}
	if len(rest) > 0 {
		return tensor.Tensor{}, &Error{int64(len(b) - len(rest)),
			fmt.Sprintf("%d bytes behind the array; expected the file to end here", len(rest))}
	}
	own := slices.Clone(t.Bytes())
	if h.bigEndian {
		width := desc.DType.Bits() / 8
		if desc.DType == tensor.C64 || desc.DType == tensor.C128 {
			width /= 2 // real and imaginary parts keep their places
		}
		vec.Swap(own, own, width)
	}
	return tensor.New("", desc, own)
}

// view cuts the tensor off data, which parse has found long enough.
func view(desc tensor.Desc, data []byte) (tensor.Tensor, []byte, error) {
	n, err := desc.Bytes()
	if err != nil {
		return tensor.Tensor{}, nil, err
	}
	t, err := tensor.New("", desc, data[:n])
	return t, data[n:], err
}

// parse reads and checks the header; data is all that is behind it, and at least as long as desc
// needs.
func parse(b []byte) (h header, desc tensor.Desc, data []byte, err error) {
	fail := func(at int, format string, args ...any) (header, tensor.Desc, []byte, error) {
		return header{}, tensor.Desc{}, nil, &Error{int64(at), fmt.Sprintf(format, args...)}
	}
	if len(b) < len(magic)+2 {
		return fail(len(b), "the file ends inside the magic number and version; expected 8 bytes")
	}
	if string(b[:len(magic)]) != magic {
		return fail(0, "found %q; expected %q: not an npy file", b[:len(magic)], magic)
	}
	major, minor := b[6], b[7]
	if major < 1 || major > 3 || minor != 0 {
		return fail(6, "version %d.%d; expected 1.0, 2.0 or 3.0", major, minor)
	}
	from, length := 10, 0
	if major > 1 {
		from = 12
	}
	if len(b) < from {
		return fail(len(b), "the file ends inside the length of the header")
	}
	if major == 1 {
		length = int(binary.LittleEndian.Uint16(b[8:]))
	} else if n := binary.LittleEndian.Uint32(b[8:]); n <= maxHeader {
		length = int(n)
	} else {
		return fail(8, "header length %d; expected at most %d", n, maxHeader)
	}
	if length > len(b)-from {
		return fail(8, "header length %d, but the file has only %d bytes after it; is it truncated?", length,
			len(b)-from)
	}
	// The copy keeps other writers of b from changing the header between its check and its use.
	s := scanner{b: bytes.Clone(b[from : from+length]), base: int64(from)}
	if h, err = s.header(); err != nil {
		return header{}, tensor.Desc{}, nil, err
	}
	desc = tensor.Desc{DType: h.dtype, Shape: h.shape}
	need, err := desc.Bytes()
	if err != nil {
		return fail(int(h.shapeAt), "%v", err)
	}
	if h.columns {
		desc.Strides = tensor.ColumnMajor(h.shape)
		if desc.Contiguous() {
			desc.Strides = nil // both orders at once: keep the simpler description
		}
	}
	data = b[from+length:]
	if need > int64(len(data)) {
		return fail(len(b), "the file ends after %d bytes of data; expected %d for %s", len(data), need, desc)
	}
	return h, desc, data, nil
}

// Write writes the tensor as a version 1.0 file and returns the number of bytes written. That
// version holds every header there can be here: one of rank 32 has less than 1,000 bytes of the
// 65,535 that it allows. The data begin at a multiple of 64 bytes. A tensor must be row-major or
// column-major contiguous. Types that numpy does not have (bf16, the 8-bit and 4-bit floats and
// packed integers) are refused, since it would read them as something else. The name is not stored.
func Write(w io.Writer, t tensor.Tensor) (int64, error) { return WriteVersion(w, t, 1) }

// WriteVersion is Write for readers that ask for format version 2 or 3, which differ only in the
// width of the header's length.
func WriteVersion(w io.Writer, t tensor.Tensor, major int) (int64, error) {
	n, err := t.Desc.Bytes()
	if err == nil && n != int64(len(t.Bytes())) {
		err = fmt.Errorf("%d bytes of memory; expected %d for %s: make it with tensor.New", len(t.Bytes()), n, t.Desc)
	}
	var head []byte
	if err == nil {
		head, err = appendHeader(nil, t.Desc, major)
	}
	if err != nil {
		return 0, fmt.Errorf("npy: tensor %.80q: %w", t.Name, err)
	}
	written := int64(0)
	for _, p := range [][]byte{head, t.Bytes()} {
		n, err := w.Write(p)
		written += int64(n)
		if err == nil && n != len(p) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return written, fmt.Errorf("npy: write after %d bytes: %w", written, err)
		}
	}
	return written, nil
}

// Header is what a version 1.0 file begins with, before the bytes of a tensor with this
// description. Errors are those of Write.
func Header(d tensor.Desc) ([]byte, error) {
	head, err := appendHeader(nil, d, 1)
	if err != nil {
		return nil, fmt.Errorf("npy: %w", err)
	}
	return head, nil
}

func appendHeader(b []byte, d tensor.Desc, major int) ([]byte, error) {
	descr, ok := d.DType.Numpy()
	order := "False"
	switch {
	case major < 1 || major > 3:
		return nil, fmt.Errorf("format version %d; expected 1, 2 or 3", major)
	case !ok:
		return nil, fmt.Errorf("numpy has no type for %s; expected one of %v, or save it as safetensors", d.DType,
			knownDescrs())
	case d.Contiguous():
	case d.ColumnMajor():
		order = "True"
	default:
		return nil, fmt.Errorf("%s is not contiguous in row-major or column-major order; copy it first", d)
	}
	b = append(b, magic...)
	b = append(b, byte(major), 0, 0, 0)
	if major > 1 {
		b = append(b, 0, 0)
	}
	from := len(b)
	b = append(b, "{'descr': '"+descr+"', 'fortran_order': "+order+", 'shape': ("...)
	for i, n := range d.Shape {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, n, 10)
		if i < len(d.Shape)-1 || i == 0 {
			b = append(b, ',') // a tuple of one keeps its comma
		}
	}
	b = append(b, "), }"...)
	for (len(b)+1)%align != 0 {
		b = append(b, ' ')
	}
	b = append(b, '\n')
	if major == 1 {
		binary.LittleEndian.PutUint16(b[8:], uint16(len(b)-from))
	} else {
		binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-from))
	}
	return b, nil
}
