package agent

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/tensor"
)

// request is a request, whose fields are read in their order.
type request struct {
	op  uint32
	id  uint64
	b   []byte
	bad bool  // it was too short
	why error // why a field is none
}

func (r *request) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad = true
		r.b = nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *request) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *request) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// data is bytes of the request, which hold until it is answered.
func (r *request) data() []byte { return r.take(int(r.u32())) }

func (r *request) text() string {
	s := string(r.data())
	if strings.ContainsRune(s, 0) {
		r.bad = true
	}
	return s
}

// memory is memory of the client: of the host, or with a token of a CUDA device.
type memory struct {
	address, size uint64
	token         []byte // by which this process opens it; of the request
	bus           string // the device's PCI address
}

func (r *request) memory() memory {
	m := memory{address: r.u64(), size: r.u64()}
	if token := r.data(); len(token) > 0 {
		m.token = token
	}
	m.bus = r.text()
	return m
}

// blocks are those of a transfer.
func (r *request) blocks() []abi.Block {
	const size = 40
	n := r.u32()
	if uint64(n) > uint64(len(r.b))/size {
		r.bad = true
		return nil
	}
	out := make([]abi.Block, n)
	for i := range out {
		out[i] = abi.Block{Region: r.u64(), Offset: r.u64(), Length: r.u64(), Remote: r.u64(), RemoteOffset: r.u64()}
	}
	return out
}

// modes are how blocks are moved.
func (r *request) modes() abi.Modes {
	return abi.Modes{Msg: r.data(), Tag: r.u32(), Paths: r.text(), Digest: r.u32() != 0}
}

// tensor is what bytes are.
func (r *request) tensor() (d tensor.Desc) {
	name, rank := r.text(), r.u32()
	if rank > tensor.MaxRank {
		r.bad = true
		return d
	}
	d.Shape = make([]int64, rank)
	for i := range d.Shape {
		d.Shape[i] = int64(r.u64())
	}
	if !r.bad {
		d.DType, r.why = tensor.ParseDType(name)
	}
	return d
}

// failed is the error of a request that is not as long as it says, or too long. It is asked when
// all fields were read.
func (r *request) failed() error {
	if r.bad || len(r.b) > 0 {
		return fmt.Errorf("agent: the arguments of operation %d cannot be read: %w", r.op, abi.ErrInvalid)
	}
	if r.why != nil {
		return fmt.Errorf("%w: %w", abi.ErrInvalid, r.why)
	}
	return nil
}

// answer is an answer under construction.
type answer struct {
	result uint64
	b      []byte // the header's room, and the body
	fd     int    // of pass
	pass   bool   // the descriptor goes with it
	close  func() // when it was sent, or never will be; may be nil
}

func (a *answer) bytes() []byte {
	if a.b == nil {
		a.b = make([]byte, answerHeader, 64)
	}
	return a.b
}

func (a *answer) u32(n uint32) { a.b = binary.LittleEndian.AppendUint32(a.bytes(), n) }
func (a *answer) u64(n uint64) { a.b = binary.LittleEndian.AppendUint64(a.bytes(), n) }

func (a *answer) text(s string) {
	a.u32(uint32(len(s)))
	a.b = append(a.b, s...)
}

func (a *answer) tensor(d *tensor.Desc) {
	a.text(d.DType.String())
	a.u32(uint32(len(d.Shape)))
	for _, n := range d.Shape {
		a.u64(uint64(n))
	}
}

func (a *answer) end() {
	if a.close != nil {
		a.close()
	}
}
