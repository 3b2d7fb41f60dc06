package tensor

import "fmt"

// Tensor is a named view of bytes: the description and the memory that holds the elements. It does
// not own the memory; the bytes are valid as long as their owner (a mapped file, a lease on a
// region) keeps them. Copying a Tensor copies no data.
//
// Make one with New, which checks that memory and description agree; a Desc must not be changed
// afterwards.
type Tensor struct {
	// Name is how the tensor is called in its file or state dict. It is data, chosen by the writer
	// of the file: never use it as a path.
	Name string
	// Desc is the type, shape and strides.
	Desc Desc

	data []byte
}

// New makes a tensor over data, which must be exactly as long as Desc.Bytes says. It keeps data and
// the slices of d, and fails where Desc.Validate does or when the length differs.
func New(name string, d Desc, data []byte) (Tensor, error) {
	n, err := d.Bytes()
	if err != nil {
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, err)
	}
	if n != int64(len(data)) {
		return Tensor{}, fmt.Errorf("tensor %q: %d bytes of memory; expected %d for %s", name, len(data), n, d)
	}
	return Tensor{Name: name, Desc: d, data: data[:n:n]}, nil
}

// Bytes is the memory of the tensor, Desc.Bytes long, for reading and, if its owner allows it, for
// writing. It is a view, not a copy: it dies with the memory.
func (t Tensor) Bytes() []byte { return t.data }

// View is the part of the tensor with indices from lo up to but not including hi along the first
// dimension, in the same memory and with the same name. It fails for a scalar, for indices outside
// of 0 <= lo <= hi <= Shape[0], and for a packed 4-bit tensor whose part would not begin and end on
// whole bytes, since a byte shared with its neighbour cannot be written alone.
func (t Tensor) View(lo, hi int64) (Tensor, error) {
	d := t.Desc
	if len(d.Shape) == 0 {
		return Tensor{}, fmt.Errorf("tensor %q: view [%d:%d]: a scalar has no dimension to slice", t.Name, lo, hi)
	}
	if lo < 0 || hi < lo || hi > d.Shape[0] {
		return Tensor{}, fmt.Errorf("tensor %q: view [%d:%d]: expected 0 <= lo <= hi <= %d", t.Name, lo, hi, d.Shape[0])
	}
	part := Desc{DType: d.DType, Shape: append([]int64{hi - lo}, d.Shape[1:]...), Strides: d.Strides}
	n, err := part.Bytes()
	if err != nil {
		return Tensor{}, fmt.Errorf("tensor %q: view [%d:%d]: %w", t.Name, lo, hi, err)
	}
	if n == 0 {
		return Tensor{Name: t.Name, Desc: part, data: t.data[:0:0]}, nil
	}
	stride := RowMajor(d.Shape)[0]
	if d.Strides != nil {
		stride = d.Strides[0]
	}
	// Neither product overflows: the tensor reaches at least as far as the element at index lo, and
	// its span was checked.
	skip := lo * stride
	if d.DType.Bits() == 4 {
		elems := spanElems(part)
		if skip%2 != 0 || elems%2 != 0 && hi != d.Shape[0] {
			return Tensor{}, fmt.Errorf("tensor %q: view [%d:%d] of %s: the part does not begin and end on whole bytes",
				t.Name, lo, hi, d)
		}
	}
	from, err := d.DType.Size(skip)
	if err != nil || from > int64(len(t.data)) || n > int64(len(t.data))-from {
		return Tensor{}, fmt.Errorf("tensor %q: view [%d:%d]: %d bytes from byte %d of a tensor of %d bytes; was it "+
			"made by New?", t.Name, lo, hi, n, from, len(t.data))
	}
	return Tensor{Name: t.Name, Desc: part, data: t.data[from : from+n : from+n]}, nil
}

// spanElems is the distance from the first to behind the last element of a valid Desc that is not
// empty.
func spanElems(d Desc) int64 {
	strides := d.Strides
	if strides == nil {
		strides = RowMajor(d.Shape)
	}
	span := int64(1)
	for i, s := range strides {
		span += s * (d.Shape[i] - 1)
	}
	return span
}

// String is the name, the description and the number of bytes; never the data.
func (t Tensor) String() string { return fmt.Sprintf("%q %s %d B", t.Name, t.Desc, len(t.data)) }
