package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdma"
	"github.com/penstock-io/penstock/mem"
)

// Rights are what a peer may do with memory that is exposed to it.
type Rights uint8

// The rights.
const (
	RemoteRead Rights = 1 << iota
	RemoteWrite
)

// String is for messages.
func (r Rights) String() string {
	switch r {
	case RemoteRead:
		return "read"
	case RemoteWrite:
		return "write"
	case RemoteRead | RemoteWrite:
		return "read, write"
	}
	return "none"
}

// own is memory of this side that a peer may reach.
type own struct {
	c     *conn
	mr    *ibv.MR
	lease mem.Lease
	flush mem.Flusher // before the peer's word of a write is passed on; nil: nothing
}

// close takes the memory back. The peer's word of a write may come later, and what it wrote is seen
// by then.
func (m *own) close() error {
	err := m.mr.Close()
	if m.flush != nil {
		if e := m.flush.Flush(); e != nil {
			m.c.unseen = cmp.Or(m.c.unseen, e)
			err = errors.Join(err, notShown(e))
		}
	}
	m.lease.Release()
	return err
}

func notShown(err error) error {
	return fmt.Errorf("an accelerator does not take what the peer wrote into its memory: %w", err)
}

// RemoteMemory is memory that the peer of a connection has exposed.
type RemoteMemory struct {
	ID     uint32 // the peer's name for it
	Length uint64 // bytes
	Rights Rights
}

// MemoryKind is what happened to memory of a connection.
type MemoryKind uint8

// The kinds.
const (
	Exposed   MemoryKind = iota // the peer exposes memory
	Retracted                   // it takes that back
	Written                     // it has written memory of this side, and says so with a value (WriteImm)
)

// MemoryEvent says what happened to memory of a connection.
type MemoryEvent struct {
	Conn   uint32
	Kind   MemoryKind
	Memory RemoteMemory // what was exposed or retracted
	Imm    uint32       // of Written
}

// Expose lets the peer of a connection reach memory of this side, under these rights, until Retract
// or the end of the connection. It returns the number by which the peer knows it. The memory stays
// mapped meanwhile. Connections of one port trust each other so far that the key would do for any
// of them: peers that must not reach each other's memory belong on ports of their own.
func (p *Port) Expose(conn uint32, span mem.Span, rights Rights) (id uint32, err error) {
	access := ibv.Access(0)
	if rights&RemoteRead != 0 {
		access |= ibv.RemoteRead
	}
	if rights&RemoteWrite != 0 {
		access |= ibv.RemoteWrite | ibv.LocalWrite
	}
	switch {
	case rights == 0 || rights&^(RemoteRead|RemoteWrite) != 0:
		return 0, invalid("rights %#x: expected RemoteRead, RemoteWrite or both", uint8(rights))
	case p.o.Connect == ByCM:
		return 0, errPlain()
	case p.o.Transport == UD || p.o.Transport == UC && rights&RemoteRead != 0:
		return 0, failed(engine.ErrUnsupported, "%v has no such operations", p.o.Transport)
	case span.Region == nil || span.Len == 0:
		return 0, invalid("memory of %d bytes to expose", span.Len)
	}
	lease, err := span.Region.Lease()
	if err != nil {
		return 0, err
	}
	mr, err := p.dev.Memory.Register(p.dev.PD, span, access)
	if err != nil {
		lease.Release()
		return 0, failed(rdma.Refused(err), "exposing %d bytes of region %q", span.Len, span.Region.Name())
	}
	m := &own{mr: mr, lease: lease}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns.Get(conn)
	if c == nil || !c.Met {
		return 0, errors.Join(failed(engine.ErrNotFound, "connection %d", conn), m.close())
	}
	if m.c = c; rights&RemoteWrite != 0 {
		m.flush = span.Region.Direct().Flush
	}
	for c.mines++; c.mine[c.mines] != nil || c.mines == 0; c.mines++ {
	}
	c.mine[c.mines] = m
	c.ch.send(&record{kind: kindExpose, memory: exposed{id: c.mines, rights: rights, rkey: mr.RKey(), addr: mr.Addr(),
		length: span.Len}})
	return c.mines, nil
}

// errPlain is the answer where a peer would have to learn of memory.
func errPlain() error {
	return failed(engine.ErrUnsupported,
		"connect=cm: the peer is a program that takes no records, so that neither side can tell the other of memory; "+
			"connect=tcp can")
}

// flush makes what the peer of a connection wrote visible to the accelerators whose memory it may
// write.
func (p *Port) flush(c *conn) error {
	p.mu.Lock()
	err := c.unseen
	var all []mem.Flusher
	for _, m := range c.mine {
		if m.flush != nil && !slices.Contains(all, m.flush) {
			all = append(all, m.flush)
		}
	}
	p.mu.Unlock()
	for _, f := range all {
		if err != nil {
			break
		}
		err = f.Flush()
	}
	if err != nil {
		return notShown(err)
	}
	return nil
}

// Retract takes exposed memory back. When it returns the peer cannot reach it any more; one that
// tries loses the connection.
func (p *Port) Retract(conn, id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns.Get(conn)
	if c == nil || c.mine[id] == nil {
		return failed(engine.ErrNotFound, "memory %d of connection %d", id, conn)
	}
	m := c.mine[id]
	delete(c.mine, id)
	c.ch.send(&record{kind: kindRetract, memory: exposed{id: id}})
	return m.close()
}

// maxTheirs is how much memory a peer can expose on one connection, in pieces.
const maxTheirs = 1 << 16

// shown takes the peer's word that it exposes memory.
func (c *conn) shown(r *record) error {
	p := c.port
	p.mu.Lock()
	_, known := c.theirs[r.memory.id]
	if known || len(c.theirs) >= maxTheirs {
		p.mu.Unlock()
		return failed(engine.ErrConnect, "memory %d: %v", r.memory.id, errOrder)
	}
	c.theirs[r.memory.id] = r.memory
	p.mu.Unlock()
	if p.o.OnMemory != nil {
		p.o.OnMemory(MemoryEvent{Conn: c.ID, Kind: Exposed, Memory: r.memory.public()})
	}
	return nil
}

func (m *exposed) public() RemoteMemory { return RemoteMemory{m.id, m.length, m.rights} }

// hidden takes the peer's word that it took memory back.
func (c *conn) hidden(r *record) error {
	p := c.port
	p.mu.Lock()
	m, known := c.theirs[r.memory.id]
	delete(c.theirs, r.memory.id)
	p.mu.Unlock()
	if known && p.o.OnMemory != nil {
		p.o.OnMemory(MemoryEvent{Conn: c.ID, Kind: Retracted, Memory: m.public()})
	}
	return nil
}

// Memory is what the peer of a connection has exposed, by number.
func (p *Port) Memory(conn uint32) []RemoteMemory {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []RemoteMemory
	if c := p.conns.Get(conn); c != nil {
		for _, m := range c.theirs {
			out = append(out, m.public())
		}
	}
	slices.SortFunc(out, func(a, b RemoteMemory) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Op is what a Transfer does.
type Op uint8

// The operations.
const (
	Read  Op = iota // from the peer's memory to this side's
	Write           // the other way
	// and the peer gets a completion with a value when it is there; takes one of the peer's receive
	// buffers
	WriteImm
)

// TransferSpec is a read or a write of memory that the peer has exposed.
type TransferSpec struct {
	Op     Op
	Conn   uint32
	Local  mem.Span // at most 1 GiB; it must not be written, or with Read used at all, until the transfer is done
	Remote uint32   // RemoteMemory.ID
	Offset uint64   // in the peer's memory, bytes
	Imm    uint32   // of WriteImm
}

// Transfer is a read or a write that was posted.
type Transfer struct {
	done  chan struct{}
	err   error
	lease mem.Lease
	flush mem.Flusher // of what a Read fills
}

// Done is closed when the transfer has ended: with nil as its Err, every byte is in place.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Err is how it ended; only for callers that have seen Done closed.
func (t *Transfer) Err() error { return t.err }

// finish ends the transfer.
func (t *Transfer) finish(well bool, c *conn) {
	if !well {
		t.err = failed(engine.ErrDown, "connection %d ended before the transfer was done", c.ID)
	} else if t.flush != nil {
		if err := t.flush.Flush(); err != nil {
			t.err = fmt.Errorf("rdma: the accelerator does not take what was read into its memory: %w", err)
		}
	}
	t.lease.Release()
	close(t.done)
}

// Post begins a transfer. It does not wait: where the device or the peer has no room now the error
// is engine.ErrFull, before the peer has a receive queue engine.ErrNotReady. Memory that the peer
// has not exposed, or not with the right that it takes, is refused here: engine.ErrNotFound,
// engine.ErrInvalid.
func (p *Port) Post(s TransferSpec) (*Transfer, error) {
	if s.Op > WriteImm {
		return nil, invalid("operation %d", s.Op)
	}
	if p.o.Connect == ByCM {
		return nil, errPlain()
	}
	if s.Local.Region == nil || s.Local.Len > maxMessage {
		return nil, invalid("a transfer of %d bytes: expected a region, and at most %d", s.Local.Len, maxMessage)
	}
	p.mu.Lock()
	c := p.conns.Get(s.Conn)
	var m exposed
	known := false
	if c != nil {
		m, known = c.theirs[s.Remote]
	}
	p.mu.Unlock()
	need := RemoteWrite
	if s.Op == Read {
		need = RemoteRead
	}
	switch {
	case c == nil:
		return nil, failed(engine.ErrNotFound, "connection %d", s.Conn)
	case !known:
		return nil, failed(engine.ErrNotFound, "memory %d of the peer of connection %d", s.Remote, s.Conn)
	case m.rights&need == 0:
		return nil, invalid("memory %d of the peer is exposed for %v alone", s.Remote, m.rights)
	case s.Offset > m.length || s.Local.Len > m.length-s.Offset:
		return nil, invalid("%d bytes at %d of the peer's memory %d, which has %d", s.Local.Len, s.Offset, s.Remote,
			m.length)
	}
	lease, err := s.Local.Region.Lease()
	if err != nil {
		return nil, err
	}
	if _, err := p.registered(s.Local.Region); err != nil {
		lease.Release()
		return nil, err
	}
	t := &Transfer{done: make(chan struct{}), lease: lease}
	if s.Op == Read {
		t.flush = s.Local.Region.Direct().Flush
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.transfer(t, &s, &m); err != nil {
		lease.Release()
		return nil, err
	}
	return t, nil
}

// transfer posts a transfer.
func (c *conn) transfer(t *Transfer, s *TransferSpec, m *exposed) error {
	o := c.out
	switch {
	case c.dead:
		return failed(engine.ErrDown, "connection %d", c.ID)
	case o == nil || !o.ready:
		return engine.ErrNotReady
	case o.broken:
		return failed(engine.ErrDown, "connection %d", c.ID)
	}
	o.reap()
	// The watchdog may have a request behind as many as there may be.
	if o.flying() >= o.depth || s.Op == WriteImm && o.w.room() == 0 {
		return engine.ErrFull
	}
	r, err := c.port.registered(s.Local.Region)
	if err != nil {
		return err
	}
	sge := r.SGE(s.Local.Off, uint32(s.Local.Len))
	o.chain.Reset()
	at := m.addr + s.Offset
	switch s.Op {
	case Read:
		o.chain.Read(o.tail, ibv.Signaled, at, m.rkey, sge)
	case Write:
		o.chain.Write(o.tail, ibv.Signaled, at, m.rkey, sge)
	case WriteImm:
		o.chain.WriteImm(o.tail, ibv.Signaled, s.Imm, at, m.rkey, sge)
	}
	if _, err := o.x.qp.PostSend(o.chain); err != nil {
		o.fail(err)
		return failed(engine.ErrDown, "connection %d: %v", c.ID, err)
	}
	o.posts[o.tail%uint64(len(o.posts))] = posted{op: t, bytes: uint32(s.Local.Len)}
	o.tail++
	o.unsignaled = 0
	if s.Op == WriteImm {
		o.w.sent++
	}
	c.guard()
	c.watch(o)
	return nil
}
