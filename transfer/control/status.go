package control

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
)

// MaxStatus is the largest status, or page of names, in bytes, before it is compressed.
const MaxStatus = 1 << 20

// Status asks a node how it is: its peers, paths, exports and transfers. A node answers peers with
// the right to know.
type Status struct {
	Rows uint32 // of each list in the answer, at most; 0 leaves it to the peer
}

// Method is MethodStatus.
func (*Status) Method() Method { return MethodStatus }
func (*Status) name() string   { return "status" }

func (m *Status) fields(c *codec) { c.u32("rows", &m.Rows) }

// StatusReport is the answer: a JSON document, compressed if that makes it smaller. NewStatusReport
// makes one, JSON reads it.
type StatusReport struct{ packed }

func (*StatusReport) name() string { return "status report" }

// packed is a document in a StatusReport or a NamesPage.
type packed struct {
	Deflated bool   // Data is in the form of RFC 1951
	Size     uint32 // bytes of the document; at most MaxStatus
	Data     []byte // at most MaxBody bytes
}

func (m *packed) fields(c *codec) {
	c.boolean("deflated", &m.Deflated)
	at := c.off
	c.u32("size", &m.Size)
	if c.err == nil && m.Size > MaxStatus {
		c.off = at
		c.fail("size", "%d bytes, at most %d", m.Size, MaxStatus)
	}
	n := uint32(len(m.Data))
	c.u32("stored", &n)
	switch {
	case c.err != nil:
	case n > MaxBody:
		c.fail("stored", "%d bytes, at most %d", n, MaxBody)
	default:
		c.bytes("data", &m.Data, int(n))
	}
}

// packedOverhead is what a packed document takes beside its data.
const packedOverhead = responseOverhead + 1 + 4 + 4

// NewStatusReport packs a document into an answer whose frame body is at most body bytes
// (Session.MaxBody). The error matches ErrTooLarge when it does not fit: make a shorter one.
func NewStatusReport(document []byte, body int) (*StatusReport, error) {
	m, err := pack(document, body-packedOverhead)
	if err != nil {
		return nil, fmt.Errorf("control: status: %w", err)
	}
	return &StatusReport{*m}, nil
}

// pack makes at most room bytes of data of a document.
func pack(document []byte, room int) (*packed, error) {
	if len(document) > MaxStatus {
		return nil, fmt.Errorf("%d bytes, at most %d: %w", len(document), MaxStatus, ErrTooLarge)
	}
	m := &packed{Size: uint32(len(document)), Data: document}
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestSpeed) // cannot fail: the level is one of its own
	w.Write(document)                            // cannot fail: it goes to memory
	w.Close()
	if b.Len() < len(document) {
		m.Deflated, m.Data = true, b.Bytes()
	}
	if len(m.Data) > room {
		return nil, fmt.Errorf("%d bytes take %d, the peer's answers have room for %d: %w", len(document), len(m.Data),
			room, ErrTooLarge)
	}
	return m, nil
}

// JSON is the document. Memory is taken for what is really there, at most MaxStatus bytes. The
// error matches BadRequest.
func (m *StatusReport) JSON() ([]byte, error) { return m.document(m.name()) }

func (m *packed) document(what string) ([]byte, error) {
	if !m.Deflated {
		if len(m.Data) != int(m.Size) {
			return nil, Errorf(BadRequest, "%s: %d bytes, expected %d", what, len(m.Data), m.Size)
		}
		return m.Data, nil
	}
	var b bytes.Buffer
	in := bytes.NewReader(m.Data)
	r := flate.NewReader(in)
	n, err := io.Copy(&b, io.LimitReader(r, int64(min(m.Size, MaxStatus))+1))
	switch {
	case err != nil:
		return nil, Errorf(BadRequest, "%s: %v after %d of %d bytes", what, err, n, m.Size)
	case n != int64(m.Size):
		return nil, Errorf(BadRequest, "%s: %d bytes or more, expected %d", what, n, m.Size)
	case in.Len() > 0:
		return nil, Errorf(BadRequest, "%s: %d bytes left over", what, in.Len())
	}
	return b.Bytes(), nil
}
