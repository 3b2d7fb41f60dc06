package share

import (
	"context"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// What takes time of a small file are round trips, so a share gives one that fits into an answer by
// the service "share/whole/2". Numbers are big-endian.
//
//	name -> 0: not by this service; or 1, tag [16] of the content, CRC-32C u32 of the bytes, modified i64 in ns since 1970, permissions u16,
//	and the bytes (the rest)
//
// The bytes are those of a file that was the same before and after they were read. With
// Options.OnAccess the answer counts as a read, whole, over "control"; the calls of "share/read/1"
// are for others.
const (
	wholeService = "share/whole/2"

	wholeNot   = 0
	wholeBytes = 1
	wholeFixed = 1 + len(Tag{}) + 4 + likeSize
	// maxWhole is the largest file in bytes.
	maxWhole uint64 = transfer.MaxCall - uint64(wholeFixed)

	// viaControl is what stands for the path of bytes that came by a call.
	viaControl = "control"
)

// whole is a file that came in one answer.
type whole struct {
	tag Tag
	crc uint32
	like
	bytes []byte
}

func (w *whole) append(b []byte) []byte {
	b = append(append(b, wholeBytes), w.tag[:]...)
	b = w.like.append(binary.BigEndian.AppendUint32(b, w.crc))
	return append(b, w.bytes...)
}

// parseWhole reads an answer; nil: the file is to be had by other means.
func parseWhole(b []byte) *whole {
	in := fieldsOf(b)
	in.expect(in.byte() == wholeBytes)
	w := &whole{tag: in.hash(), crc: uint32(in.num(4)), like: in.like()}
	if w.bytes = in.b; in.bad || uint64(len(w.bytes)) > maxWhole {
		return nil
	}
	return w
}

// whole answers a call of wholeService.
func (s *Server) whole(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	name := string(b)
	switch {
	case name == "" || len(name) > MaxName || !utf8.ValidString(name):
		return nil, control.Errorf(control.BadRequest, "malformed name (%d bytes)", len(name))
	case !p.Carries():
		return []byte{wholeNot}, nil
	}
	s.lookedUp(ctx, name)
	s.mu.Lock()
	v, ok := s.names[name]
	s.mu.Unlock()
	if !ok || v.export.Span().Len > maxWhole {
		return []byte{wholeNot}, nil
	}
	w := whole{tag: v.tag, like: v.of.like()}
	if err := v.read(&w); err != nil || !s.isCurrent(v.of.path) {
		return []byte{wholeNot}, nil
	}
	s.mu.Lock()
	now := s.names[name]
	s.mu.Unlock()
	if now != v {
		return []byte{wholeNot}, nil
	}
	if s.o.OnAccess != nil {
		s.readWhole(p, name, uint64(len(w.bytes)), viaControl)
	}
	return w.append(make([]byte, 0, wholeFixed+len(w.bytes))), nil
}

// read copies the bytes of a view, which may be truncated meanwhile.
func (v *view) read(w *whole) error {
	lease, err := v.of.region.Lease()
	if err != nil { // it is no longer served
		return err
	}
	defer lease.Release()
	span := v.export.Span()
	w.bytes = make([]byte, span.Len)
	if err := guard(v.of.path, func() { copy(w.bytes, lease.Bytes()[span.Off:]) }); err != nil {
		return err
	}
	w.crc = vec.CRC32C(0, w.bytes)
	return nil
}

// look asks for a name, and in the same round trip for the file, which is nil unless it came,
// verified, and is what the name stands for.
func (c Conn) look(ctx context.Context, p *transfer.Peer, name string) (r *transfer.Remote, w *whole, err error) {
	if c.path || !p.Carries() || len(name) > MaxName {
		r, err = p.Lookup(ctx, name)
		return r, nil, err
	}
	answer := make(chan *whole, 1)
	go func() {
		b, err := p.Call(ctx, wholeService, []byte(name))
		if err != nil { // an older share, or one that is gone: the name decides
			b = nil
		}
		answer <- parseWhole(b)
	}()
	r, err = p.Lookup(ctx, name)
	w = <-answer
	if err != nil || w == nil || w.tag != r.Tag || uint64(len(w.bytes)) != r.Size() || r.Desc.Rights&path.Read == 0 ||
		vec.CRC32C(0, w.bytes) != w.crc {
		w = nil
	}
	return r, w, err
}

// take puts the bytes of a file that came in one answer into the partial file.
func (f *Fetched) take(ctx context.Context, p *partial, w *whole) error {
	if p.good() == p.size { // an earlier attempt had left them
		return nil
	}
	if err := p.room(ctx, 0, p.size); err != nil {
		return err
	}
	if err := guard(partialOf(p.shown), func() { copy(p.lease.Bytes(), w.bytes) }); err != nil {
		return err
	}
	sum, err := p.sum(0)
	if err == nil && sum != w.crc {
		err = fmt.Errorf("%w: the file has another checksum than its bytes had", path.ErrIntegrity)
	}
	if err == nil {
		err = p.record(p.size)
	}
	if err != nil {
		return err
	}
	f.Moved, f.Path, f.Proof = p.size, viaControl, path.ProofCRC32C
	return nil
}
