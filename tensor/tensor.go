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

// String is the name, the description and the number of bytes; never the data.
func (t Tensor) String() string { return fmt.Sprintf("%q %s %d B", t.Name, t.Desc, len(t.data)) }
