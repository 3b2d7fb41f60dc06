package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/mem"
)

func region(t testing.TB, size int) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: "memory", Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		<-r.Unmapped()
	})
	return r
}

func ended(t testing.TB, x *Transfer, err error) error {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-x.Done():
	case <-within(t).Done():
		t.Fatal("a transfer does not end")
	}
	return x.Err()
}

// TestOneSided reads and writes memory that the peer exposes, between packets.
func TestOneSided(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire"} {
		t.Run(mode, func(t *testing.T) {
			oneSided(t, onFake(t, mode))
		})
	}
}

func oneSided(t *testing.T, f world) {
	events := make(chan MemoryEvent, 100)
	theirs, mine := region(t, 1<<16), region(t, 1<<16)
	s, c, id := f.pair(t, Options{OnMemory: func(e MemoryEvent) {
		events <- e
	}}, Options{OnMemory: func(e MemoryEvent) { events <- e }})
	event := func() MemoryEvent {
		t.Helper()
		select {
		case e := <-events:
			return e
		case <-within(t).Done():
			t.Fatal("no event")
		}
		return MemoryEvent{}
	}
	to := c.conns.Main().ID
	all := theirs.All()
	span, err := all.Sub(4096, 8192)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Expose(id, span, RemoteRead|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if e := event(); e != (MemoryEvent{Conn: to, Memory: RemoteMemory{m, 8192, RemoteRead | RemoteWrite}}) {
		t.Fatalf("%+v", e)
	}
	half, err := s.Expose(id, span, RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	event()
	if l := c.Memory(to); len(l) != 2 || l[0].ID != m || l[1].Rights != RemoteRead {
		t.Errorf("%+v", l)
	}
	local, err := mine.All().Sub(0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	// Before the peer has a receive queue there is no channel.
	if _, err := c.Post(TransferSpec{Op: Write, Conn: to, Local: local, Remote: m}); !errors.Is(err,
		engine.ErrNotReady) {
		t.Errorf("a transfer without a channel: %v", err)
	}
	in, out := rx(t, s, engine.RxSpec{Depth: 8}), tx(t, c, engine.TxSpec{})
	put(t, out, 0, "before")
	got(t, in, 1)
	for i := range local.Bytes() {
		local.Bytes()[i] = byte(i * 7)
	}
	x, err := c.Post(TransferSpec{Op: Write, Conn: to, Local: local, Remote: m, Offset: 100})
	if err := ended(t, x, err); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(span.Bytes()[100:1100], local.Bytes()) ||
		bytes.ContainsFunc(span.Bytes()[1100:], func(r rune) bool {
			return r != 0
		}) {
		t.Error("the bytes that were written are not there, or elsewhere")
	}
	if c := theirs.All().Bytes(); bytes.ContainsFunc(c[:4096], func(r rune) bool { return r != 0 }) {
		t.Error("something was written in front of the memory")
	}
	for k := range 20 { // with packets of both kinds in between
		put(t, out, 0, fmt.Sprint("packet ", k))
		x, err = c.Post(TransferSpec{Op: WriteImm, Conn: to, Local: local, Remote: m, Offset: uint64(k),
			Imm: 0xabcd0000 + uint32(k)})
		if err := ended(t, x, err); err != nil {
			t.Fatal(err)
		}
		if g := got(t, in, 1); g[0] != fmt.Sprintf("%d packet %d", id, k) {
			t.Fatalf("%q", g)
		}
		until(t, "the word of a write", func() bool { in.Discard(); return len(events) > 0 })
		if e := event(); e.Kind != Written || e.Imm != 0xabcd0000+uint32(k) || e.Conn != id {
			t.Fatalf("%+v", e)
		}
	}
	clear(local.Bytes())
	x, err = c.Post(TransferSpec{Op: Read, Conn: to, Local: local, Remote: half, Offset: 19})
	if err := ended(t, x, err); err != nil || local.Bytes()[1] != 7 || local.Bytes()[999] != byte(999*7&0xff) {
		t.Errorf("%v; % x", err, local.Bytes()[:8])
	}
	for _, x := range []struct {
		what string
		s    TransferSpec
		is   error
	}{
		{"no such memory", TransferSpec{Conn: to, Local: local, Remote: 99}, engine.ErrNotFound},
		{"no such connection", TransferSpec{Conn: 99, Local: local, Remote: m}, engine.ErrNotFound},
		{"no right to write", TransferSpec{Op: Write, Conn: to, Local: local, Remote: half}, engine.ErrInvalid},
		{"behind the end", TransferSpec{Conn: to, Local: local, Remote: m, Offset: 8192 - 999}, engine.ErrInvalid},
		{"far behind the end", TransferSpec{Conn: to, Local: local, Remote: m, Offset: 1<<64 - 1}, engine.ErrInvalid},
		{"no memory", TransferSpec{Conn: to, Remote: m}, engine.ErrInvalid},
		{"no operation", TransferSpec{Op: 9, Conn: to, Local: local, Remote: m}, engine.ErrInvalid},
	} {
		if _, err := c.Post(x.s); !errors.Is(err, x.is) {
			t.Errorf("%s: %v, expected %v", x.what, err, x.is)
		}
	}
	if err := s.Retract(id, half); err != nil {
		t.Fatal(err)
	}
	if e := event(); e.Kind != Retracted || e.Memory.ID != half {
		t.Errorf("%+v", e)
	}
	if err := s.Retract(id, half); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("taking back what was taken back: %v", err)
	}
}

// TestStaleKey: a peer that goes on using memory that was taken back loses its connection, and the
// memory stays as it is.
func TestStaleKey(t *testing.T) {
	theirs, mine := region(t, 4096), region(t, 4096)
	f := onFake(t, "mode wire")
	gone := newEnds()
	s, c, id := f.pair(t, Options{}, Options{Options: conns.Options{OnConn: gone.on}})
	rx(t, s, engine.RxSpec{Depth: 8})
	to := c.conns.Main().ID
	m, err := s.Expose(id, theirs.All(), RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the memory", func() bool { i, _ := c.Conn(to); return i.Sends && len(c.Memory(to)) == 1 })
	mine.All().Bytes()[0] = 1
	s.mu.Lock() // as if the word of it came late
	own := s.conns.Get(id).mine[m]
	delete(s.conns.Get(id).mine, m)
	s.mu.Unlock()
	if err := own.close(); err != nil {
		t.Fatal(err)
	}
	x, err := c.Post(TransferSpec{Op: Write, Conn: to, Local: mine.All(), Remote: m})
	if err := ended(t, x, err); !errors.Is(err, engine.ErrDown) {
		t.Errorf("a write under a key that is no more: %v", err)
	}
	if theirs.All().Bytes()[0] != 0 {
		t.Error("the memory was written")
	}
	if v := gone.next(t, false); v.Err == nil {
		t.Error("the connection ended without a reason")
	}
}

func TestExposeRefused(t *testing.T) {
	r := region(t, 4096)
	f := onFake(t, "")
	s, _, id := f.pair(t, Options{Transport: UC}, Options{Transport: UC})
	for _, c := range []struct {
		conn   uint32
		span   mem.Span
		rights Rights
		is     error
	}{{id, r.All(), 0, engine.ErrInvalid}, {id, r.All(), 4, engine.ErrInvalid},
		{id, r.All(), RemoteRead, engine.ErrUnsupported}, {id, mem.Span{}, RemoteWrite, engine.ErrInvalid},
		{99, r.All(), RemoteWrite, engine.ErrNotFound}} {
		if _, err := s.Expose(c.conn, c.span, c.rights); !errors.Is(err, c.is) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestForgedRight: a right that was not given is refused by the device, whatever the peer's program
// thinks.
func TestForgedRight(t *testing.T) {
	for _, given := range []Rights{RemoteRead, RemoteWrite} {
		t.Run(given.String(), func(t *testing.T) { forgedRight(t, given) })
	}
}

func forgedRight(t *testing.T, given Rights) {
	theirs, mine := region(t, 4096), region(t, 4096)
	f := onFake(t, "mode wire")
	s, c, id := f.pair(t, Options{}, Options{})
	rx(t, s, engine.RxSpec{Depth: 8})
	to := c.conns.Main().ID
	m, err := s.Expose(id, theirs.All(), given)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the memory", func() bool { i, _ := c.Conn(to); return i.Sends && len(c.Memory(to)) == 1 })
	c.mu.Lock()
	x := c.conns.Get(to).theirs[m]
	x.rights = RemoteRead | RemoteWrite
	c.conns.Get(to).theirs[m] = x
	c.mu.Unlock()
	op := Write
	if given == RemoteWrite {
		op = Read
	}
	tr, err := c.Post(TransferSpec{Op: op, Conn: to, Local: mine.All(), Remote: m})
	if err := ended(t, tr, err); !errors.Is(err, engine.ErrDown) {
		t.Errorf("%v without the right: %v", op, err)
	}
}
