package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/penstock-io/penstock/tensor"
)

// Write writes a file with the given tensors and metadata (nil for none) and returns the number of
// bytes written. It streams: the memory it needs is that of the header.
//
// The same input gives the same bytes, whatever its order: tensors are sorted by the width of their
// elements, widest first, then by name, which keeps each aligned to its own element type without
// gaps; metadata is sorted by key. The header is padded with spaces so that the data begin at a
// multiple of 8 bytes. (The reference implementation sorts likewise, but breaks ties between types
// of one width by its own list of types; readers accept any order.)
//
// Nothing is written if a tensor cannot be: one that is not row-major contiguous, has a dtype that
// the format lacks, an odd number of 4-bit elements, a name that occurs twice, is not UTF-8 or is
// "__metadata__", or that was not made by tensor.New.
func Write(w io.Writer, tensors []tensor.Tensor, metadata map[string]string) (int64, error) {
	for _, t := range tensors {
		if n, err := t.Desc.Bytes(); err == nil && n != int64(len(t.Bytes())) {
			return 0, fmt.Errorf("safetensors: tensor %s: %d bytes of memory; expected %d for %s: make it with "+
				"tensor.New",
				quote(t.Name), len(t.Bytes()), n, t.Desc)
		}
	}
	sorted := slices.Clone(tensors)
	slices.SortStableFunc(sorted, func(a, b tensor.Tensor) int {
		return cmp.Or(b.Desc.DType.Bits()-a.Desc.DType.Bits(), cmp.Compare(a.Name, b.Name))
	})
	header, err := appendHeader(make([]byte, prefix), sorted, metadata)
	if err != nil {
		return 0, err
	}
	written, err := writeFull(w, header)
	for i := 0; err == nil && i < len(sorted); i++ {
		var n int64
		n, err = writeFull(w, sorted[i].Bytes())
		written += n
	}
	if err != nil {
		return written, fmt.Errorf("safetensors: write after %d bytes: %w", written, err)
	}
	return written, nil
}

// Header is what a file begins with whose tensors, of which it needs names and Descs, follow each
// other in this order. Spaces fill it up to size bytes.
func Header(tensors []tensor.Tensor, metadata map[string]string, size int) ([]byte, error) {
	b, err := appendHeader(make([]byte, prefix), tensors, metadata)
	if err != nil {
		return nil, err
	}
	if len(b) > size {
		return nil, fmt.Errorf("safetensors: a header of %d bytes; expected at most %d", len(b), size)
	}
	b = append(b, bytes.Repeat([]byte{' '}, size-len(b))...)
	binary.LittleEndian.PutUint64(b, uint64(len(b)-prefix))
	return b, nil
}

// writeFull also catches a Writer that takes less than everything and says nothing.
func writeFull(w io.Writer, p []byte) (int64, error) {
	n, err := w.Write(p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return int64(n), err
}

// appendHeader appends the header behind the space for its length in b, and fills in that length.
func appendHeader(b []byte, sorted []tensor.Tensor, metadata map[string]string) ([]byte, error) {
	b = append(b, '{')
	if metadata != nil {
		b = append(b, `"`+metadataKey+`":{`...)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, fmt.Errorf("safetensors: metadata %s: expected UTF-8", quote(key))
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, key)
			b = append(b, ':')
			b = appendString(b, metadata[key])
		}
		b = append(b, '}')
	}
	names := make(map[string]struct{}, len(sorted))
	offset := int64(0)
	for i, t := range sorted {
		if _, twice := names[t.Name]; twice {
			return nil, fmt.Errorf("safetensors: tensor %s occurs twice; expected one of each name", quote(t.Name))
		}
		names[t.Name] = struct{}{}
		dtype, size, err := check(t)
		if err != nil {
			return nil, fmt.Errorf("safetensors: tensor %s: %w", quote(t.Name), err)
		}
		if offset > math.MaxInt64-size {
			return nil, fmt.Errorf("safetensors: tensor %s: the data exceed 2^63-1 bytes", quote(t.Name))
		}
		if i > 0 || metadata != nil {
			b = append(b, ',')
		}
		b = appendString(b, t.Name)
		b = append(b, `:{"dtype":"`+dtype+`","shape":`...)
		b = appendIntegers(b, t.Desc.Shape...)
		b = append(b, `,"data_offsets":`...)
		b = appendIntegers(b, offset, offset+size)
		b = append(b, '}')
		offset += size
		if len(b) > prefix+MaxHeader {
			break
		}
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	if len(b) > prefix+MaxHeader {
		return nil, fmt.Errorf("safetensors: the header of %d tensors is longer than %d bytes; write fewer to a file",
			len(sorted), MaxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-prefix))
	return b, nil
}

// check is everything that must hold for one tensor; it returns the format's name of the dtype, and
// the number of bytes.
func check(t tensor.Tensor) (dtype string, n int64, err error) {
	if n, err = t.Desc.Bytes(); err != nil {
		return "", 0, err
	}
	dtype, ok := t.Desc.DType.Safetensors()
	switch {
	case !ok:
		return "", 0, fmt.Errorf("dtype %s does not exist in this format; expected one of %v", t.Desc.DType,
			knownDTypes())
	case !t.Desc.Contiguous():
		return "", 0, fmt.Errorf("%s is not row-major contiguous, which is all that this format holds; copy it first",
			t.Desc)
	case t.Name == metadataKey:
		return "", 0, fmt.Errorf("the format keeps this name for the metadata")
	case !utf8.ValidString(t.Name):
		return "", 0, fmt.Errorf("the name is not UTF-8")
	}
	if elems, _ := t.Desc.Elems(); t.Desc.DType.Bits() < 8 && elems%2 != 0 {
		return "", 0, fmt.Errorf("%d elements of %s do not fill whole bytes; the format expects an even number", elems,
			t.Desc.DType)
	}
	return dtype, n, nil
}

// appendString appends a JSON string. Only what JSON forbids is escaped; valid UTF-8 stays as it
// is.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

func appendIntegers(b []byte, v ...int64) []byte {
	b = append(b, '[')
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, ']')
}

func knownDTypes() []string {
	var names []string
	for _, d := range tensor.DTypes() {
		if name, ok := d.Safetensors(); ok {
			names = append(names, name)
		}
	}
	return names
}
