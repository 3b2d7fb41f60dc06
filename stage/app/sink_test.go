package app

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

func newNode(t testing.TB) *transfer.Node {
	t.Helper()
	n, err := transfer.Open(limit(t), transfer.Options{Anonymous: identity.All,
		Listen: []string{"unix://" + filepath.Join(t.TempDir(), "s")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// reader is another node that gets a tensor again and again.
type reader struct {
	t    testing.TB
	peer *transfer.Peer
	to   *mem.Region
	name string
	size uint64
}

func newReader(t testing.TB, of *transfer.Node, name string, d tensor.Desc) *reader {
	t.Helper()
	n, err := transfer.Open(limit(t), transfer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	size, _ := d.Bytes()
	r, err := mem.Alloc(mem.Options{Size: int(size)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	})
	p, err := n.Dial(limit(t), of.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	return &reader{t, p, r, name, uint64(size)}
}

// errTaken says that the application took the tensor back during the get, as it may: a reader that
// wants one looks the name up again.
var errTaken = errors.New("the tensor was taken back")

// get gets the tensor and returns its generation.
func (r *reader) get() (generation uint64, got []byte, err error) {
	x, err := r.peer.Lookup(limit(r.t), r.name)
	if err != nil {
		return 0, nil, err
	}
	if x.Size() != r.size || x.Tensor == nil {
		return 0, nil, fmt.Errorf("%d bytes of %v", x.Size(), x.Tensor)
	}
	local, err := r.to.Span(0, r.size)
	if err != nil {
		return 0, nil, err
	}
	f, err := r.peer.Get(limit(r.t), []path.Copy{x.At(0, local)}, transfer.PutOptions{})
	if err == nil {
		err = f.Wait(limit(r.t))
	}
	if errors.Is(err, path.ErrRevoked) || errors.Is(err, path.ErrKey) || errors.Is(err, control.Revoked) {
		return 0, nil, errTaken
	}
	return binary.BigEndian.Uint64(x.Tag[8:]), local.Bytes(), err
}

// rowOf is the payload with a number.
func rowOf(seq uint64, size int) []byte {
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		binary.BigEndian.PutUint64(b[i:], seq+uint64(i)<<40)
	}
	return b
}

// checkRows looks at every byte of a tensor: each row is that of its number, and all of one tensor;
// rows that are not there are zero. It returns the tensor and how many rows are missing.
func checkRows(t testing.TB, got []byte, rows, size int) (of uint64, missing int) {
	t.Helper()
	found := false
	zero := make([]byte, size)
	for k := range rows {
		row := got[k*size : (k+1)*size]
		if bytes.Equal(row, zero) {
			missing++
			continue
		}
		seq := binary.BigEndian.Uint64(row)
		if !bytes.Equal(row, rowOf(seq, size)) || int(seq%uint64(rows)) != k {
			t.Fatalf("row %d of %d is damaged, or another one: number %d", k, rows, seq)
		}
		if g := seq / uint64(rows); found && g != of {
			t.Fatalf("row %d is of tensor %d, those before are of %d", k, g, of)
		}
		of, found = seq/uint64(rows), true
	}
	return of, missing
}

// A stream of frames with numbers, on a network that loses, doubles and changes their order,
// becomes tensors that a peer gets under traffic. Each is whole and of one piece of the stream, and
// the counts of what is missing are those of the network.
func TestSinkTransfer(t *testing.T) {
	for name, faults := range map[string]sim.Faults{
		"good":   {},
		"faulty": {Loss: 0.02, Duplicate: 0.02, Reorder: 0.05, ReorderBy: 100 * time.Microsecond},
	} {
		for _, buffers := range []int{2, 4} {
			t.Run(fmt.Sprint(name, buffers), func(t *testing.T) { testSinkTransfer(t, faults, buffers) })
		}
	}
}

func testSinkTransfer(t *testing.T, faults sim.Faults, buffers int) {
	const rows, size, wanted = 64, 512, 12
	net, link, a, b := pair(t, sim.Options{Seed: 7}, 1024)
	if err := link.SetFaults(faults); err != nil {
		t.Fatal(err)
	}
	node := newNode(t)
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{rows, size}}
	app, stop := start(t, Options{Kind: Sink, Rx: rx(b), Frames: true,
		Tensor: &Tensor{Node: node, Name: "stream", Desc: d, Offset: Headers, Width: 8, Buffers: buffers}})

	// The sender sends two tensors for each that the reader has seen, and lets the reader be in
	// between: readers and writers meet, and the reader gets on however slow it is.
	type result struct {
		seen map[uint64]bool
		err  error
	}
	done := make(chan result, 1)
	var verified atomic.Uint64
	r := newReader(t, node, "stream", d)
	over := make(chan struct{})
	go func() {
		res := result{seen: map[uint64]bool{}}
		defer func() { done <- res }()
		for len(res.seen) < wanted {
			select {
			case <-over:
				return
			default:
			}
			g, got, err := r.get()
			if errors.Is(err, errTaken) {
				continue
			}
			if err != nil {
				res.err = err
				return
			}
			if of, missing := checkRows(t, got, rows, size); missing < rows {
				res.seen[of] = true
			}
			verified.Store(g)
		}
	}()
	defer close(over)
	seq := uint64(0)
	send := func(n int) {
		for range n {
			// number 0 would look like a row that is missing
			a.send(t, 0, udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", rowOf(seq+rows, size)))
			seq++
		}
	}
	awaitQuiet := func() {
		until(t, "the network to be quiet", func() bool {
			l, s := net.Ledger(), app.Snapshot()
			return l.Held == 0 && s.Taken+s.Drops.Total() == l.Received
		})
	}
	var res result
	for ended := false; !ended; {
		send(2*rows + 3)
		awaitQuiet()
		at := app.Snapshot().Tensor.Generations
		until(t, "the reader", func() bool {
			select {
			case res = <-done:
				ended = true
			default:
			}
			return ended || verified.Load() >= at || at == 0
		})
	}
	if res.err != nil || len(res.seen) < wanted {
		t.Fatalf("%d tensors, %v", len(res.seen), res.err)
	}
	awaitQuiet()
	l := net.Ledger()
	s := stop()
	x := s.Tensor
	if s.Packets != l.Received || s.Taken != x.Rows || x.Bytes != x.Rows*size {
		t.Errorf("received %d: %+v, %+v", l.Received, s, x)
	}
	// Rows that were placed, those of the tensor under way among them, and those that are missing
	// are all rows of the tensors so far.
	if total := x.Generations*rows + uint64(x.Filled); x.Rows+x.Missing != total {
		t.Errorf("%d rows and %d missing, of %d: %+v", x.Rows, x.Missing, total, x)
	}
	if faults == (sim.Faults{}) && (x.Missing != 0 || s.Drops.Total() != 0 || x.Rows != seq) {
		t.Errorf("a good network: %+v, %+v", s, x)
	}
	if faults != (sim.Faults{}) && (x.Missing == 0 || s.Drops[DropDuplicate]+s.Drops[DropLate] == 0) {
		t.Errorf("the faults of the network left no trace: %+v, %+v", s, x)
	}
}

// A lookup before there is a tensor waits for the first, and gets it.
func TestSinkFirst(t *testing.T) {
	at := loopback(5203)
	e := open(t, socket.New(), engine.PortSpec{Address: "udp://" + at}, 64)
	node := newNode(t)
	d := tensor.Desc{DType: tensor.F32, Shape: []int64{2, 4}}
	app, stop := start(t, Options{Kind: Sink, Rx: rx(e),
		Tensor: &Tensor{Node: node, Name: "pair", Desc: d, Offset: 4, Buffers: 2}})
	r := newReader(t, node, "pair", d)
	type answer struct {
		g   uint64
		got []byte
		err error
	}
	asked := make(chan answer, 1)
	lookups := make(chan struct{}, 16)
	// called after that of the sink
	defer node.OnLookup(func(context.Context, *transfer.Peer, string) { lookups <- struct{}{} })()
	go func() {
		g, got, err := r.get()
		asked <- answer{g, bytes.Clone(got), err}
	}()
	c, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Rows in their order: one of full length, one that is too long, one that has nothing behind
	// the offset, one that is short.
	for _, p := range []string{"0000first row, 16b..", "0000this row is longer than 16 bytes", "0000", "0000short"} {
		if _, err := c.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	a := <-asked
	if want := "first row, 16b..short\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"; a.err != nil || a.g != 1 ||
		string(a.got) != want {
		t.Fatalf("generation %d: %q, %v", a.g, a.got, a.err)
	}
	// What was in a buffer before does not come back in a short row.
	for i, p := range []string{"0000XXXXXXXXXXXXXXXX", "0000XXXXXXXXXXXXXXXX", "0000YYYYYYYYYYYYYYYY",
		"0000YYYYYYYYYYYYYYYY", "0000ZZ", "0000ZZZ"} {
		if _, err := c.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
		until(t, "the row", func() bool {
			s := app.Snapshot()
			return s.Taken == uint64(3+i) && s.Tensor.Generations == uint64(1+(i+1)/2)
		})
	}
	if g, got, err := r.get(); err != nil || g != 4 ||
		string(got) != "ZZ"+strings.Repeat("\x00", 14)+"ZZZ"+strings.Repeat("\x00", 13) {
		t.Fatalf("generation %d: %q, %v", g, got, err)
	}
	s := stop()
	if s.Packets != 10 || s.Drops[DropTooLong] != 1 || s.Drops[DropNoPayload] != 1 || s.Taken != 8 ||
		s.Tensor.Short != 3 || s.Tensor.Generations != 4 {
		t.Errorf("%+v, %+v", s, s.Tensor)
	}
	// It is gone with the application.
	if _, _, err := r.get(); !errors.Is(err, control.NotFound) {
		t.Error(err)
	}
	if len(lookups) == 0 {
		t.Error("nobody asked")
	}
}

// Bytes of a connection fill tensors from their beginning; the end of the connection ends its last
// one; others never get their turn.
func TestSinkStream(t *testing.T) {
	at := loopback(5204)
	e := open(t, socket.New(), engine.PortSpec{Address: "tcp://" + at + "?listen=1"}, 64)
	node := newNode(t)
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{32, 1000}}
	app, stop := start(t, Options{Kind: Sink, Rx: rx(e), Stream: true,
		Tensor: &Tensor{Node: node, Name: "bytes", Desc: d}})
	r := newReader(t, node, "bytes", d)
	const whole, rest = 3, 12345
	text := make([]byte, whole*32000+rest)
	for i := range text {
		text[i] = byte(i*7>>3) | 1
	}
	for turn := range uint64(2) {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		for k := range uint64(whole) { // one by one, so that each is seen
			if _, err := c.Write(text[k*32000 : (k+1)*32000]); err != nil {
				t.Fatal(err)
			}
			until(t, "the tensor", func() bool { return app.Snapshot().Tensor.Generations == turn*(whole+1)+k+1 })
			if g, got, err := r.get(); err != nil || g != turn*(whole+1)+k+1 ||
				!bytes.Equal(got, text[k*32000:(k+1)*32000]) {
				t.Fatalf("generation %d: %v", g, err)
			}
		}
		if _, err := c.Write(text[whole*32000:]); err != nil {
			t.Fatal(err)
		}
		c.Close()
		until(t, "the last tensor", func() bool { return app.Snapshot().Tensor.Generations == (turn+1)*(whole+1) })
		want := append(bytes.Clone(text[whole*32000:]), make([]byte, 32000-rest)...)
		if g, got, err := r.get(); err != nil || g != (turn+1)*(whole+1) || !bytes.Equal(got, want) {
			t.Fatalf("generation %d: %v", g, err)
		}
	}
	s := stop()
	if x := s.Tensor; x.Missing != 2*(32-13) || x.Short != 2 || x.Rows != 2*(whole*32+13) ||
		x.Bytes != 2*uint64(len(text)) || s.Bytes != 2*uint64(len(text)) || s.Drops.Total() != 0 {
		t.Errorf("%+v, %+v", s, x)
	}
}

// A header with the number is stripped from each payload: rows are what lies behind it, and a
// payload that is only a header is none.
func TestSinkStrip(t *testing.T) {
	_, _, a, b := pair(t, sim.Options{}, 64)
	node := newNode(t)
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{4, 16}}
	_, stop := start(t, Options{Kind: Sink, Rx: rx(b), Frames: true,
		Tensor: &Tensor{Node: node, Name: "x", Desc: d, Offset: Headers, Sequence: 2, Width: 4, Strip: 6}})
	r := newReader(t, node, "x", d)
	header := func(seq byte) []byte { return []byte{0xff, 0xff, 0, 0, 0, seq} }
	a.send(t, 0, udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", header(4)))
	for seq := byte(4); seq < 8; seq++ {
		a.send(t, 0, udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", append(header(seq), rowOf(uint64(seq), 16)...)))
	}
	_, got, err := r.get()
	if err != nil {
		t.Fatal(err)
	}
	if of, missing := checkRows(t, got, 4, 16); of != 1 || missing != 0 {
		t.Errorf("tensor %d, %d rows missing", of, missing)
	}
	if s := stop(); s.Tensor.Bytes != 4*16 || s.Tensor.Short != 0 || s.Drops[DropNoPayload] != 1 ||
		s.Drops[DropTooLong] != 0 {
		t.Errorf("%+v", s)
	}
}

// A tensor whose time has passed is published with the rows that are there.
func TestSinkFlush(t *testing.T) {
	_, _, a, b := pair(t, sim.Options{}, 64)
	node := newNode(t)
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{8, 16}}
	_, stop := start(t, Options{Kind: Sink, Rx: rx(b), Frames: true,
		Tensor: &Tensor{Node: node, Name: "x", Desc: d, Offset: Headers, Width: 8, Flush: time.Millisecond}})
	r := newReader(t, node, "x", d)
	a.send(t, 0, udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", rowOf(8+5, 16)))
	_, got, err := r.get() // it waits for the first
	if err != nil {
		t.Fatal(err)
	}
	if of, missing := checkRows(t, got, 8, 16); of != 1 || missing != 7 || got[5*16+7] != 13 {
		t.Errorf("tensor %d, %d rows missing", of, missing)
	}
	if s := stop(); s.Tensor.Missing != 7 || s.Tensor.Generations != 1 {
		t.Errorf("%+v", s.Tensor)
	}
}
