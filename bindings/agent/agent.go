// Package agent serves the C ABI of bindings/abi to another process of the same user over a Unix
// socket. Its client is bindings/c/client, a library for C without a Go runtime. What a connection
// has made ends with it.
//
// A request is a header of 16 bytes (size of the body, operation, id) and a body; an answer is a
// header of 32 bytes (size, code, id, result, descriptors, whether the call may succeed later) and
// a body. Numbers are little-endian; a text is its length in 32 bits and its bytes. One goroutine
// reads the requests of a connection and does what does not wait; what waits has a goroutine of its
// own, so answers come in any order. A request with the id 0 has no answer.
package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/procmem"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/transfer/path"
)

// Version is that of the protocol: both ends are of one version.
const Version = 2

const (
	requestHeader = 16
	answerHeader  = 32

	maxBody    = 64 << 20  // of a request
	inPlace    = 64 << 10  // a larger body has memory of its own
	maxWaiting = 1024      // requests of a connection that wait at a time
	maxHeld    = 256 << 20 // bytes of requests that wait
	maxHandles = 1 << 20   // of a connection
)

// named is the bit of handles that the client gives. Those of the table do not have it: their lower
// 42 bits begin below room, and count up.
const (
	named = 1 << 41
	room  = 1 << 40
)

// helloTimeout is how long a client may take to say hello: one that says nothing takes the place of
// another.
var helloTimeout = 10 * time.Second

// conn is a connection with a client.
type conn struct {
	c     *net.UnixConn
	table *abi.Table
	ctx   context.Context
	turns chan struct{}
	held  atomic.Int64 // bytes of requests that wait
	wg    sync.WaitGroup
	send  sync.Mutex

	named uint64 // the largest handle that the client gave; for the goroutine that reads

	far   *procmem.Process // the client, for its memory; nil: noFar says why
	noFar error
	mu    sync.Mutex                  // guards what follows
	room  map[uint64]*mem.Region      // for packets, by the handle of the receive queue
	last  map[uint64][]*reorder.Batch // what is known of the packets of its last burst; nil: none is a batch
}

// Serve answers the requests of a client until it hangs up, or ctx ends; then it ends what the
// client has made. The client has to be a process of the user of this one.
func Serve(ctx context.Context, c *net.UnixConn) error {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var far *procmem.Process
	var noFar error
	err = sys.OfConn(c, func(fd int) error {
		pid, uid, err := sys.PeerCred(fd)
		if err != nil {
			return err
		}
		if own := sys.EffectiveUID(); uid != own {
			return fmt.Errorf("agent: process %d of user %d is refused: expected one of user %d", pid, uid, own)
		}
		// now, and not when its memory is needed: its number may be another process's then
		pid, process, err := sys.PeerProcess(fd)
		switch {
		case err == nil:
			far = procmem.Of(pid, process)
		case errors.Is(err, sys.ESRCH):
			return fmt.Errorf("agent: process %d has ended: %w", pid, err)
		default: // the kernel has no such descriptors: the client gets all that needs none
			noFar = err
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	x := &conn{c: c, ctx: ctx, far: far, noFar: noFar, turns: make(chan struct{}, maxWaiting),
		room: map[uint64]*mem.Region{}, last: map[uint64][]*reorder.Batch{}}
	c.SetReadDeadline(time.Now().Add(helloTimeout))
	err = x.read(bufio.NewReaderSize(&requests{raw: raw}, inPlace))
	end()
	if x.table != nil {
		x.table.Cancel() // for those who wait to get memory back
	}
	x.wg.Wait()
	var ends []error
	if x.table != nil {
		ends = append(ends, x.table.End())
	}
	for _, r := range x.room {
		ends = append(ends, r.Close())
	}
	if far != nil {
		ends = append(ends, far.Close())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, sys.ECONNRESET) {
		err = nil
	}
	return errors.Join(append(ends, err)...)
}

// read serves requests until there are no more.
func (x *conn) read(in *bufio.Reader) error {
	var header [requestHeader]byte
	scratch := make([]byte, inPlace)
	for {
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return err
		}
		size, op := binary.LittleEndian.Uint32(header[:]), binary.LittleEndian.Uint32(header[4:])
		r := &request{op: op, id: binary.LittleEndian.Uint64(header[8:])}
		if size > maxBody {
			return fmt.Errorf("agent: a request of %d bytes: expected %d at most", size, maxBody)
		}
		if size <= inPlace {
			r.b = scratch[:size]
			if _, err := io.ReadFull(in, r.b); err != nil {
				return err
			}
		} else {
			var b bytes.Buffer // grows as the bytes come
			if _, err := io.CopyN(&b, in, int64(size)); err != nil {
				return err
			}
			r.b = b.Bytes()
		}
		if err := x.serve(r); err != nil {
			return err
		}
	}
}

// serve answers a request, or begins to. An error ends the connection.
func (x *conn) serve(r *request) error {
	if op := hello; r.op == op || x.table == nil {
		return x.greet(r)
	}
	c, ok := calls[r.op]
	switch {
	case !ok:
		return x.answer(r, nil, fmt.Errorf("agent: no operation %d: expected a client of version %d: %w", r.op, Version,
			abi.ErrInvalid))
	case c.makes && x.table.Open() >= maxHandles:
		return x.answer(r, nil, fmt.Errorf("%d handles are open, and that is the limit: close some: %w", maxHandles,
			path.ErrFull))
	case c.waits == nil || !c.waits(x, r):
		a, err := abi.Guarded(func() (*answer, error) { return c.do(x, r) })
		return x.answer(r, a, err)
	}
	size := int64(len(r.b))
	select {
	case x.turns <- struct{}{}:
	default:
		return x.answer(r, nil, fmt.Errorf("%d calls wait already: %w", maxWaiting, engine.ErrFull))
	}
	if x.held.Add(size) > maxHeld {
		x.held.Add(-size)
		<-x.turns
		return x.answer(r, nil, fmt.Errorf("calls that wait have %d bytes of arguments already: %w", maxHeld,
			engine.ErrFull))
	}
	if len(r.b) <= inPlace {
		r.b = bytes.Clone(r.b) // the next request takes its place
	}
	x.wg.Go(func() {
		a, err := abi.Guarded(func() (*answer, error) { return c.do(x, r) })
		x.held.Add(-size)
		<-x.turns
		if x.answer(r, a, err) != nil {
			x.c.Close()
		}
	})
	return nil
}

// greet answers the first request, which says what the client is, and after which number its
// handles begin.
func (x *conn) greet(r *request) error {
	version, last := r.u32(), r.u64()
	switch {
	case r.op != hello || r.failed() != nil || x.table != nil:
		return errors.New("agent: the client does not begin with hello")
	case version != Version:
		return x.answer(r, nil,
			fmt.Errorf("the client is of version %d, and the agent of version %d: use a command and a library that "+
				"were built together: %w", version, Version, abi.ErrInvalid))
	}
	if last%(2*named) >= room {
		return x.answer(r, nil, fmt.Errorf("agent: handles after %d: expected lower 42 bits below %d: %w", last,
			uint64(room), abi.ErrInvalid))
	}
	x.table = abi.After(last)
	x.c.SetReadDeadline(time.Time{})
	return x.answer(r, &answer{result: uint64(os.Getpid())}, nil)
}

// answer sends an answer; with err that of a call that failed.
func (x *conn) answer(r *request, a *answer, err error) error {
	if a == nil || err != nil {
		if a != nil {
			a.end()
		}
		a = &answer{}
	}
	if r.id == 0 {
		a.end()
		return nil
	}
	code, retriable := abi.CodeOf(err)
	if err != nil {
		a.text(err.Error())
	}
	b := a.bytes()
	binary.LittleEndian.PutUint32(b, uint32(len(b)-answerHeader))
	binary.LittleEndian.PutUint32(b[4:], uint32(code))
	binary.LittleEndian.PutUint64(b[8:], r.id)
	binary.LittleEndian.PutUint64(b[16:], a.result)
	if retriable {
		b[28] = 1
	}
	x.send.Lock()
	defer x.send.Unlock()
	defer a.end()
	if a.pass {
		b[24] = 1
		n, _, err := x.c.WriteMsgUnix(b, sys.RightsMessage(a.fd), nil)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if len(b) == 0 {
		return nil
	}
	_, err = x.c.Write(b)
	return err
}

// within is the context of a call that waits for so many milliseconds.
func (x *conn) within(ms int64) (context.Context, context.CancelFunc) {
	ctx, end := abi.Within(ms)
	stop := context.AfterFunc(x.ctx, end)
	return ctx, func() { stop(); end() }
}
