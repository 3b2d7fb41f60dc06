package tcp

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/transfer/path/seal"
)

// middle is an attacker on the way: it understands hellos and records, and has no secret.
type middle struct {
	t      testing.TB
	l      net.Listener
	target string
	raw    bool                    // what follows the hello is no records, and is passed on
	hello  func(up bool, b []byte) // may change a hello or an answer
	// passes record n on, or does something else; false ends the connection
	edit  func(w *wire, up bool, n int, b []byte) bool
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

// wire is where a record goes.
type wire struct {
	link int // the number of the connection in its path
	to   net.Conn
	held []byte
}

func (w *wire) pass(b []byte) { w.to.Write(b) }

func newMiddle(t testing.TB, target string) *middle {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &middle{t: t, l: l, target: target}
}

// start lets connections in; what they meet is set before.
func (m *middle) start() {
	m.wg.Go(m.serve)
	m.t.Cleanup(m.close)
}

func (m *middle) close() {
	m.l.Close()
	m.mu.Lock()
	for _, c := range m.conns {
		c.Close()
	}
	m.conns = nil
	m.mu.Unlock()
	m.wg.Wait()
}

func (m *middle) serve() {
	for {
		a, err := m.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", m.target)
		if err != nil {
			a.Close()
			continue
		}
		m.mu.Lock()
		m.conns = append(m.conns, a, b)
		m.mu.Unlock()
		link := make(chan int, 1) // known from the dialer's hello: connections come in any order
		m.wg.Go(func() { m.pump(link, true, a, b) })
		m.wg.Go(func() { m.pump(link, false, b, a) })
	}
}

func (m *middle) pump(link chan int, up bool, from, to net.Conn) {
	defer to.(*net.TCPConn).CloseWrite() // in good order: nothing but the records' own end can tell
	b := make([]byte, helloSize)
	_, err := io.ReadFull(from, b)
	w := &wire{to: to}
	if up {
		var h hello
		if err == nil {
			h.parse(b) // what is no hello counts as the first
		}
		w.link = int(h.index)
		link <- w.link
	} else {
		w.link = <-link
	}
	if err != nil {
		return
	}
	if m.hello != nil {
		m.hello(up, b)
	}
	to.Write(b)
	if m.raw {
		io.Copy(to, from)
		return
	}
	for n := 0; ; n++ {
		rec := make([]byte, seal.HeaderSize, 1<<15)
		if _, err := io.ReadFull(from, rec); err != nil {
			return
		}
		size, err := seal.RecordSize(rec)
		if err != nil {
			m.t.Errorf("something that is no record: %x", rec)
			return
		}
		rec = rec[:size]
		if _, err := io.ReadFull(from, rec[seal.HeaderSize:]); err != nil {
			return
		}
		if m.edit == nil {
			to.Write(rec)
		} else if !m.edit(w, up, n, rec) {
			return
		}
	}
}

// rehello changes a hello and makes its checksum right again.
func rehello(b []byte, f func(h *hello)) {
	var h hello
	if err := h.parse(b); err != nil {
		panic(err)
	}
	f(&h)
	h.put(b)
}
