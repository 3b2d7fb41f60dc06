package safetensors

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
)

// File is a parsed file. Its methods may be called from any goroutine; none but Close changes
// anything.
type File struct {
	tensors  []tensor.Tensor
	offsets  []int64 // of each tensor's bytes, from the beginning of the file
	index    map[string]int
	metadata map[string]string
	opaque   map[string]Opaque
	dataAt   int64

	region *mem.Region // nil unless Open made the file
	lease  mem.Lease
}

// Open maps the file read-only and parses it. Nothing of the data is read until it is used. Writing
// to a tensor's bytes would fault. The file must not be truncated while it is open: the kernel
// answers access to bytes that are gone with a signal that ends the process, and a regular file,
// unlike a memfd, cannot be sealed against it.
//
// Errors name the path; those of the format wrap an *Error.
func Open(path string) (*File, error) {
	region, err := mem.AdoptFile(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	lease, err := region.Lease()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("safetensors: %w", err), region.Close())
	}
	f, err := Parse(lease.Bytes())
	if err != nil {
		lease.Release()
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), region.Close())
	}
	f.region, f.lease = region, lease
	return f, nil
}

// Close ends the life of all views and unmaps the file as soon as no other lease on its region is
// left. On a File from Parse, and when called again, it does nothing. It must not run at the same
// time as another Close.
func (f *File) Close() error {
	if f.region == nil {
		return nil
	}
	f.lease.Release()
	err := f.region.Close()
	f.region, f.lease = nil, mem.Lease{}
	return err
}

// Region is the mapped file, for exporting it to a peer; nil if the File came from Parse or is
// closed. A caller that keeps a part of it beyond Close takes a lease of its own.
func (f *File) Region() *mem.Region { return f.region }

// Tensors are all tensors in the order of their bytes in the file. The File owns the slice.
func (f *File) Tensors() []tensor.Tensor { return f.tensors }

// Tensor finds a tensor by its name.
func (f *File) Tensor(name string) (tensor.Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return tensor.Tensor{}, false
	}
	return f.tensors[i], true
}

// Offset is where the bytes of the named tensor begin, counted from the beginning of the file,
// which is also the offset in Region.
func (f *File) Offset(name string) (int64, bool) {
	i, ok := f.index[name]
	if !ok {
		return 0, false
	}
	return f.offsets[i], true
}

// Metadata is what the header has under "__metadata__", nil if it has none. The File owns the map.
func (f *File) Metadata() map[string]string { return f.metadata }

// Opaque is what a header says of a tensor of which only the bytes are known, because its type, or
// a key that it has besides, is not.
type Opaque struct {
	DType string  // as the header has it, which may be any text
	Shape []int64 // in elements of DType
}

// Opaque says whether only the bytes of the named tensor are known, and what the header says of it.
// Among the tensors it is one of U8, of one dimension, and [Write] makes it one.
func (f *File) Opaque(name string) (o Opaque, ok bool) {
	o, ok = f.opaque[name]
	return o, ok
}

// DataOffset is where the data begin, counted from the beginning of the file.
func (f *File) DataOffset() int64 { return f.dataAt }
