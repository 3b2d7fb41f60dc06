package cli

import (
	"bytes"
	"context"
	"fmt"

	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/safetensors"
	"github.com/penstock-io/penstock/tensor/synth"
)

// demoModel is the tensors that the demo moves: those of a file, or made ones. Both processes build
// it from the same few words, so that the receiver can check every byte without asking the sender.
type demoModel struct {
	title   string
	tensors []demoTensor
	size    uint64 // of the memory that takes all of them
	file    *safetensors.File
}

type demoTensor struct {
	name   string
	desc   tensor.Desc
	off    uint64 // in the receiver's memory
	size   uint64
	source uint64 // in the sender's memory
}

// align is the alignment in bytes of each tensor in the receiver's memory: a cache line.
const align = 64

func loadDemoModel(file string, small bool) (*demoModel, error) {
	m := &demoModel{}
	if file == "" {
		model := synth.GPT2
		m.title = "a made state dict with the shapes of GPT-2 small (no file was given)"
		if small {
			model = synth.Tiny
			m.title = "a made state dict in miniature (--small)"
		}
		for _, s := range model.Tensors() {
			if err := m.add(s.Name, s.Desc, 0); err != nil {
				return nil, err
			}
		}
		for i := range m.tensors {
			m.tensors[i].source = m.tensors[i].off
		}
		return m, nil
	}
	f, err := safetensors.Open(file)
	if err != nil {
		return nil, err
	}
	m.file, m.title = f, file
	for _, t := range f.Tensors() {
		off, _ := f.Offset(t.Name)
		if err := m.add(t.Name, t.Desc, uint64(off)); err != nil {
			f.Close()
			return nil, err
		}
	}
	if len(m.tensors) == 0 {
		f.Close()
		return nil, fmt.Errorf("%s: the file has no tensors", file)
	}
	return m, nil
}

func (m *demoModel) add(name string, d tensor.Desc, source uint64) error {
	n, err := d.Bytes()
	if err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	m.tensors = append(m.tensors, demoTensor{name, d, m.size, uint64(n), source})
	m.size += (uint64(n) + align - 1) &^ (align - 1)
	return nil
}

// bytes is the sum of the tensors' sizes.
func (m *demoModel) bytes() (n uint64) {
	for _, t := range m.tensors {
		n += t.size
	}
	return n
}

// dtypes lists the types that occur, in order of appearance.
func (m *demoModel) dtypes() (out []string) {
	seen := map[tensor.DType]bool{}
	for _, t := range m.tensors {
		if !seen[t.desc.DType] {
			seen[t.desc.DType] = true
			out = append(out, t.desc.DType.String())
		}
	}
	return out
}

// region is the sender's memory: the mapped file itself, or memory that is filled here.
func (m *demoModel) region() (*mem.Region, error) {
	if m.file != nil {
		return m.file.Region(), nil
	}
	r, err := mem.Alloc(mem.Options{Name: "demo source", Size: int(max(m.size, 1))})
	if err != nil {
		return nil, err
	}
	b := r.All().Bytes()
	for _, t := range m.tensors {
		synth.Fill(b[t.source:t.source+t.size], synth.Seed(t.name))
	}
	return r, nil
}

// verify checks every byte of every tensor in the receiver's memory r and returns how many were
// right, and whether a kernel of the accelerator a saw the same.
func (m *demoModel) verify(ctx context.Context, a *accel.Accelerator, r *mem.Region) (checked uint64, byKernel bool,
	err error) {
	all, err := r.Span(0, m.size)
	if err != nil {
		return 0, false, err
	}
	byKernel, err = a.Inspect(ctx, all, func(b []byte, off uint64) error {
		n, err := m.verifyPart(b, off)
		checked += n
		return err
	})
	return checked, byKernel, err
}

// verifyBytes is verify for memory that this process sees as a whole.
func (m *demoModel) verifyBytes(b []byte) (uint64, error) { return m.verifyPart(b[:m.size], 0) }

// verifyPart checks the parts of tensors in b, which lies at off of the receiver's memory, and
// returns how many of their bytes were right.
func (m *demoModel) verifyPart(b []byte, off uint64) (checked uint64, err error) {
	for _, t := range m.tensors {
		lo, hi := max(t.off, off), min(t.off+t.size, off+uint64(len(b)))
		if lo >= hi {
			continue
		}
		got, at := b[lo-off:hi-off], lo-t.off
		if m.file == nil {
			if bad, ok := synth.Verify(got, synth.Seed(t.name), at); !ok {
				return checked, fmt.Errorf("tensor %q: byte %d of %d is wrong", t.name, at+uint64(bad), t.size)
			}
		} else {
			want, ok := m.file.Tensor(t.name)
			if !ok || !bytes.Equal(got, want.Bytes()[at:at+hi-lo]) {
				return checked, fmt.Errorf("tensor %q differs from the file", t.name)
			}
		}
		checked += hi - lo
	}
	return checked, nil
}

func (m *demoModel) close() {
	if m.file != nil {
		m.file.Close()
	}
}
