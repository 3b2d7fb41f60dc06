package rdma

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// otherPrograms has the examples of librdmacm's authors at the other end: they know nothing of
// Penstock.
func otherPrograms(t *testing.T, w managers) {
	t.Run("rdma_client", func(t *testing.T) { rdmaClient(t, w) })
	t.Run("rdma_server", func(t *testing.T) { rdmaServer(t, w) })
	t.Run("ucmatose connects", func(t *testing.T) { ucmatose(t, w, false) })
	t.Run("ucmatose accepts", func(t *testing.T) { ucmatose(t, w, true) })
	t.Run("udaddy connects", func(t *testing.T) { udaddy(t, w, false) })
	t.Run("udaddy accepts", func(t *testing.T) { udaddy(t, w, true) })
	t.Run("killed", func(t *testing.T) { killedProgram(t, w) })
}

// program is a program that was started, and what it says.
type program struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &program{cmd: exec.CommandContext(ctx, name, args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// well waits until it ends, and fails the test unless it says that all went well.
func (p *program) well(t *testing.T, says string) {
	t.Helper()
	if err := p.cmd.Wait(); err != nil || !strings.Contains(p.out.String(), says) {
		t.Errorf("%q: %v, expected %q:\n%s", p.cmd.Args, err, says, &p.out)
	}
}

// stained is a pool without a zero in it: bytes that do not come are seen.
func stained(t *testing.T, size, slots int) *mem.Pool {
	t.Helper()
	p := pool(t, size, slots)
	b := p.Span().Bytes()
	for i := range b {
		b[i] = 0xa5
	}
	return p
}

// messages receives n messages, which must be that long, and zero where zeros is true.
func messages(t *testing.T, q engine.RxQueue, n, length int, zeros bool) {
	t.Helper()
	r := engine.NewRx(q, engine.Batching{})
	b := burst.New(32)
	for n > 0 {
		if err := r.Recv(within(t), b); err != nil {
			t.Fatalf("%d messages to come: %v", n, err)
		}
		for i := range b.Len() {
			if m := b.Bytes(i, 0); len(m) != length || zeros && !bytes.Equal(m, make([]byte, length)) {
				t.Errorf("a message of %d bytes, expected %d: % x", len(m), length, m[:min(len(m), 32)])
			}
		}
		n -= b.Len()
		b.Release()
	}
}

const exampleMessage = 16 // bytes, all zero, that rdma_client and rdma_server exchange

func rdmaClient(t *testing.T, w managers) {
	events := newEnds()
	s := w.server(t, Options{Options: conns.Options{OnConn: events.on}})
	q := rx(t, s, engine.RxSpec{Depth: 16, Pools: []*mem.Pool{stained(t, 256, 16)}})
	out := tx(t, s, engine.TxSpec{})
	p := start(t, "rdma_client", "-s", w.host, "-p", strings.TrimPrefix(s.LocalAddr().String(), w.host+":"))
	id := events.next(t, true).ID
	messages(t, q, 1, exampleMessage, true)
	put(t, out, id, text(1, exampleMessage))
	p.well(t, "end 0")
	if e := events.next(t, false); e.ID != id || e.Err != nil {
		t.Errorf("%+v", e)
	}
	if st := stats(s); st.Tx.Packets != 1 || st.Rx.Packets != 1 {
		t.Errorf("%+v", st)
	}
}

func rdmaServer(t *testing.T, w managers) {
	events := newEnds()
	p := start(t, "rdma_server", "-s", w.host, "-p", "7391")
	// it comes to listen when it does
	c := w.open(t, "roce://"+w.host+":7391?connect=cm",
		Options{Options: conns.Options{OnConn: events.on, ConnectTimeout: time.Minute}})
	q := rx(t, c, engine.RxSpec{Depth: 16, Pools: []*mem.Pool{stained(t, 256, 16)}})
	put(t, tx(t, c, engine.TxSpec{}), 0, text(1, exampleMessage))
	messages(t, q, 1, exampleMessage, true)
	p.well(t, "end 0")
	if e := events.next(t, false); e.Err != nil {
		t.Errorf("%+v", e)
	}
	if st := stats(c); st.Tx.Packets != 1 || st.Rx.Packets != 1 {
		t.Errorf("%+v", st)
	}
}

// ucmatose sends so many messages each way: first the side that accepts, then the other one. It
// does not look at their bytes.
func ucmatose(t *testing.T, w managers, accepts bool) {
	const n, size = 40, 700
	args := []string{"-C", "40", "-S", "700"}
	events := newEnds()
	var us *Port
	var p *program
	if accepts {
		p = start(t, "ucmatose", append(args, "-b", w.host, "-p", "7392")...)
		us = w.open(t, "roce://"+w.host+":7392?connect=cm",
			Options{Options: conns.Options{OnConn: events.on, ConnectTimeout: time.Minute}})
	} else {
		us = w.server(t, Options{Options: conns.Options{OnConn: events.on}})
	}
	q := rx(t, us, engine.RxSpec{Depth: 8, Pools: []*mem.Pool{pool(t, 1024, 16)}}) // fewer buffers than messages
	out := tx(t, us, engine.TxSpec{})
	if !accepts {
		p = start(t, "ucmatose", append(args, "-s", w.host, "-p",
			strings.TrimPrefix(us.LocalAddr().String(), w.host+":"))...)
	}
	id := events.next(t, true).ID
	if accepts {
		messages(t, q, n, size, false)
	}
	for i := range n {
		put(t, out, id, text(i, size))
	}
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if !accepts { // it waits for the other side to close
		messages(t, q, n, size, false)
		if err := us.CloseConn(id); err != nil {
			t.Error(err)
		}
	}
	p.well(t, "return status 0")
	if e := events.next(t, false); e.ID != id || e.Err != nil {
		t.Errorf("%+v", e)
	}
	if st := stats(us); st.Tx.Packets != n || st.Rx.Packets != n {
		t.Errorf("%+v", st)
	}
}

// udaddy sends datagrams: the side that connects sends all of its own, the other sends as many
// back. It knows one port only, and reads the number of our queue pair from the immediate value of
// our first message.
func udaddy(t *testing.T, w managers, accepts bool) {
	const n, size, port = 30, 700, "7174"
	args := []string{"-C", "30", "-S", "700"}
	events := newEnds()
	query := "connect=cm&transport=UD"
	// it comes to listen when it does
	o := Options{Options: conns.Options{OnConn: events.on, ConnectTimeout: time.Minute}}
	spec := engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool(t, 2048, 96)}}
	var us *Port
	var p *program
	if accepts {
		p = start(t, "udaddy", append(args, "-b", w.host)...)
		us = w.open(t, "roce://"+w.host+":"+port+"?"+query, o)
	} else {
		us = w.open(t, "roce://"+w.host+":"+port+"?listen=1&"+query, o)
	}
	q := rx(t, us, spec)
	out := tx(t, us, engine.TxSpec{})
	if !accepts {
		p = start(t, "udaddy", append(args, "-s", w.host)...)
	}
	id := events.next(t, true).ID
	if !accepts {
		messages(t, q, n, size, false)
	}
	for i := range n {
		put(t, out, id, text(i, size))
	}
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if accepts {
		messages(t, q, n, size, false)
	}
	p.well(t, "return status 0")
	if st := stats(us); st.Tx.Packets != n || st.Rx.Packets != n {
		t.Errorf("%+v", st)
	}
}

// killedProgram: the port learns that the program was killed.
func killedProgram(t *testing.T, w managers) {
	events := newEnds()
	s := w.server(t, Options{Options: conns.Options{OnConn: events.on}})
	q := rx(t, s, engine.RxSpec{Depth: 16})
	p := start(t, "rdma_client", "-s", w.host, "-p", strings.TrimPrefix(s.LocalAddr().String(), w.host+":"))
	id := events.next(t, true).ID
	messages(t, q, 1, exampleMessage, false)
	if err := p.cmd.Process.Kill(); err != nil { // it waits for an answer
		t.Fatal(err)
	}
	p.cmd.Wait()
	if e := events.next(t, false); e.ID != id {
		t.Errorf("%+v", e)
	}
}
