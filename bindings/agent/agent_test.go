package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/internal/sys"
)

// served is a client's end of a connection with an agent, and what Serve returns.
func served(t testing.TB) (*net.UnixConn, <-chan error) {
	t.Helper()
	a, b, err := sys.SocketPairStream("agent")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	ca, err := net.FileConn(a)
	if err != nil {
		t.Fatal(err)
	}
	cb, err := net.FileConn(b)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- Serve(context.Background(), cb.(*net.UnixConn)) }()
	t.Cleanup(func() { ca.Close() })
	return ca.(*net.UnixConn), ended
}

// message is a request.
func message(op uint32, id uint64, body func(*answer)) []byte {
	a := &answer{b: make([]byte, requestHeader)}
	if body != nil {
		body(a)
	}
	binary.LittleEndian.PutUint32(a.b, uint32(len(a.b)-requestHeader))
	binary.LittleEndian.PutUint32(a.b[4:], op)
	binary.LittleEndian.PutUint64(a.b[8:], id)
	return a.b
}

func greeting(version uint32, last uint64) []byte {
	return message(hello, 1, func(a *answer) { a.u32(version); a.u64(last) })
}

// told is an answer: its code, id, result and body.
func told(t *testing.T, c net.Conn) (code int32, id, result uint64, body []byte) {
	t.Helper()
	var header [answerHeader]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		t.Fatal(err)
	}
	body = make([]byte, binary.LittleEndian.Uint32(header[:]))
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	return int32(binary.LittleEndian.Uint32(header[4:])), binary.LittleEndian.Uint64(header[8:]),
		binary.LittleEndian.Uint64(header[16:]), body
}

// The agent does not wait for ever for a client that says nothing, and for as long as it likes for
// one that said hello.
func TestSilentClient(t *testing.T) {
	was := helloTimeout
	helloTimeout = time.Millisecond
	defer func() { helloTimeout = was }()
	c, ended := served(t)
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
	helloTimeout = time.Minute
	c, _ = served(t)
	c.Write(greeting(Version, 0))
	if code, _, _, body := told(t, c); code != 0 {
		t.Fatalf("%d %s", code, body)
	}
}

// The agent ends the connection of a client that does not begin with hello, and answers one of
// another version with both versions.
func TestGreeting(t *testing.T) {
	c, ended := served(t)
	c.Write(message(opStatus, 1, func(a *answer) { a.u64(1) }))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "hello") {
		t.Errorf("without hello: %v", err)
	}
	c, _ = served(t)
	c.Write(greeting(Version+1, 0))
	if code, _, _, body := told(t, c); code != abi.Invalid || !strings.Contains(string(body), "version") {
		t.Errorf("another version: %d, %q", code, body)
	}
	for last, ok := range map[uint64]bool{7<<42 | 12345: true, 7<<42 | room: false, 7<<42 | named: false,
		7<<42 | named | 5: false} {
		c, _ = served(t)
		c.Write(greeting(Version, last))
		if code, _, _, body := told(t, c); (code == abi.OK) != ok {
			t.Errorf("handles after %#x: %d, %q", last, code, body)
		}
	}
	c, ended = served(t)
	huge := greeting(Version, 0)
	binary.LittleEndian.PutUint32(huge, maxBody+1)
	c.Write(huge)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "expected") {
		t.Errorf("a request that is too long: %v", err)
	}
}

// A call that waits holds up no other one, and what a connection has made ends with it.
func TestAnswers(t *testing.T) {
	c, ended := served(t)
	c.Write(greeting(Version, 1000))
	if code, _, _, _ := told(t, c); code != abi.OK {
		t.Fatalf("hello: %d", code)
	}
	c.Write(message(opOpen, 2, func(a *answer) { a.text("penstock: {transfers: {name: a}}") }))
	code, _, system, body := told(t, c)
	if code != abi.OK || system != 1001 {
		t.Fatalf("open: %d, %d, %s", code, system, body)
	}
	forever := ^uint64(0)
	c.Write(message(opReceive, 3, func(a *answer) { a.u64(system); a.u64(forever) }))
	c.Write(message(opProgress, 4, func(a *answer) { a.u64(system) }))
	if code, id, _, _ := told(t, c); code != abi.Invalid || id != 4 {
		t.Errorf("a call beside one that waits: %d of %d", code, id)
	}
	c.Write(message(opClose, 0, func(a *answer) { a.u64(7) })) // has no answer
	c.Write(message(99, 5, nil))
	if code, id, _, _ := told(t, c); code != abi.Invalid || id != 5 {
		t.Errorf("no such operation: %d of %d", code, id)
	}
	c.Write(message(opStatus, 6, nil))
	if code, id, _, _ := told(t, c); code != abi.Invalid || id != 6 {
		t.Errorf("a request that is too short: %d of %d", code, id)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client gives the handle of a transfer of a prepared list, and waits for no answer: what is
// wrong is said by the calls of that handle.
func TestNamed(t *testing.T) {
	c, ended := served(t)
	c.Write(greeting(Version, 0))
	told(t, c)
	repost := func(id, list, as uint64) { c.Write(message(opRepost, id, func(a *answer) { a.u64(list); a.u64(as) })) }
	asked := func(op uint32, h uint64) (int32, string) {
		c.Write(message(op, 9, func(a *answer) {
			a.u64(h)
			if op == opWait {
				a.u64(1000)
			}
		}))
		code, _, _, body := told(t, c)
		return code, string(body)
	}
	repost(0, 77, named|5)
	for _, op := range []uint32{opWait, opWatch, opProgress, opCancel, opExplain} {
		if code, text := asked(op, named|5); code != abi.Invalid || !strings.Contains(text, "handle 77 ") {
			t.Errorf("operation %d of a transfer that could not be begun: %d, %q", op, code, text)
		}
	}
	for _, as := range []uint64{named | 5, named | 4, 6, 0} {
		repost(3, 77, as)
		if code, id, _, body := told(t, c); code != abi.Invalid || id != 3 ||
			!strings.Contains(string(body), "larger than") {
			t.Errorf("a handle %#x: %d of %d, %q", as, code, id, body)
		}
	}
	if code, text := asked(opClose, named|5); code != abi.OK {
		t.Errorf("close: %d, %q", code, text)
	}
	repost(0, 78, named|6)
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Calls that wait are bounded in number: what is too much is refused at once, and has no effect on
// the others.
func TestLimits(t *testing.T) {
	c, ended := served(t)
	c.Write(greeting(Version, 0))
	told(t, c)
	c.Write(message(opOpen, 2, func(a *answer) { a.text("penstock: {transfers: {name: a}}") }))
	_, _, system, _ := told(t, c)
	for i := range uint64(maxWaiting + 1) {
		c.Write(message(opReceive, 10+i, func(a *answer) { a.u64(system); a.u64(^uint64(0)) }))
	}
	if code, id, _, _ := told(t, c); code != abi.Full || id != 10+maxWaiting {
		t.Errorf("one call too many: %d of %d", code, id)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Any bytes are requests or none: no call panics, and none is taken from beyond its end.
func FuzzRequest(f *testing.F) {
	for op := hello; op <= opTag; op++ {
		f.Add(op, message(op, 1, func(a *answer) {
			a.u64(1)
			a.text("a")
			a.u64(2)
			a.u64(3)
			a.u32(4)
		})[requestHeader:])
	}
	f.Add(opPost, message(opPost, 1, func(a *answer) {
		a.u64(1)
		a.u32(1)
		a.u32(1)
		for range 5 {
			a.u64(1)
		}
		a.text("message")
		a.u32(3)
		a.text("shm")
		a.u32(0)
	})[requestHeader:])
	f.Add(opLog, message(opLog, 1, func(a *answer) { a.u64(1); a.u64(0) })[requestHeader:])
	f.Fuzz(func(t *testing.T, op uint32, body []byte) {
		x := &conn{table: abi.After(1 << 40), ctx: t.Context()} // no handle is open
		c, ok := calls[op]
		if !ok || op == opOpen || op == opAlloc || op == opAdopt {
			r := &request{op: op, b: body}
			r.blocks()
			r.modes()
			r.tensor()
			return
		}
		r := &request{op: op, b: body}
		if c.waits != nil {
			c.waits(x, r)
			if len(r.b) != len(body) {
				t.Fatal("a look at a request has changed it")
			}
		}
		if a, err := c.do(x, r); err == nil && op != opRepost && op != opLog {
			// that is answered later, and this names no handle
			t.Errorf("operation %d answers %v without a handle that is open", op, a)
		}
	})
}
