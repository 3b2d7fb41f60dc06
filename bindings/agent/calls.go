package agent

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
)

// The operations, in the order of penstock.h; bindings/c/client/client.h has the same numbers.
const (
	hello uint32 = iota + 1
	opOpen
	opClose
	opAddresses
	opStatus
	opLog
	opAlloc
	opAdopt
	opDMA
	opExport
	opPublish
	opDescribe
	opServe
	opDial
	opLookup
	opList
	opEntries
	opPost
	opPostMemory
	opNotify
	opPrepare
	opRepost
	opWait
	opWatch
	opProgress
	opCancel
	opExplain
	opEventFD
	opEnded
	opSubscribe
	opReceive
	opRx
	opBurst
	opSend
	opBatch
	opTag
)

// call is how a request is answered.
type call struct {
	do    func(*conn, *request) (*answer, error)
	makes bool                       // a handle
	waits func(*conn, *request) bool // whether it may take long; nil: it never does
}

func always(*conn, *request) bool { return true }

// calls are the operations but hello.
var calls = map[uint32]call{
	opOpen: {made(func(x *conn, r *request) (uint64, error) {
		yaml := r.text()
		return then(r, func() (uint64, error) { return x.table.System(yaml) })
	}), true, always},
	opClose:     {(*conn).close, false, func(_ *conn, r *request) bool { return r.id != 0 }},
	opAddresses: {said(func(x *conn, h uint64) (string, error) { return x.table.Addresses(h) }), false, nil},
	opStatus:    {said(func(x *conn, h uint64) (string, error) { return x.table.Status(h) }), false, always},
	opLog:       {(*conn).log, false, always},
	opAlloc:     {(*conn).alloc, true, always},
	opDMA:       {(*conn).dma, false, always},
	opAdopt: {made(func(x *conn, r *request) (uint64, error) {
		name, theirs := r.text(), r.memory()
		return then(r, func() (uint64, error) {
			m, err := x.adopt(name, theirs)
			if err != nil {
				return 0, err
			}
			return x.table.Adopt(m), nil
		})
	}), true, func(_ *conn, r *request) bool {
		look := *r
		look.text()
		return look.memory().token != nil
	}},
	opExport: {made(func(x *conn, r *request) (uint64, error) {
		h, memory, offset, length, name, rights, flags := r.u64(), r.u64(), r.u64(), r.u64(), r.text(), r.u32(), r.u32()
		return then(r, func() (uint64, error) { return x.table.Export(h, memory, offset, length, name, rights, flags) })
	}), true, always},
	opPublish: {made(func(x *conn, r *request) (uint64, error) {
		h, memory, offset, d, name, rights, flags := r.u64(), r.u64(), r.u64(), r.tensor(), r.text(), r.u32(), r.u32()
		return then(r, func() (uint64, error) { return x.table.Publish(h, memory, offset, d, name, rights, flags) })
	}), true, always},
	opDescribe: {(*conn).describe, false, nil},
	opServe: {made(func(x *conn, r *request) (uint64, error) {
		h, name, flags := r.u64(), r.text(), r.u32()
		return then(r, func() (uint64, error) { return x.table.Serve(h, name, flags) })
	}), true, always},
	opDial: {made(func(x *conn, r *request) (uint64, error) {
		h, address, timeout := r.u64(), r.text(), int64(r.u64())
		return then(r, func() (uint64, error) {
			ctx, end := x.within(timeout)
			defer end()
			return x.table.Dial(ctx, h, address)
		})
	}), true, always},
	opLookup: {(*conn).lookup, true, always},
	opList: {made(func(x *conn, r *request) (uint64, error) {
		h, prefix, timeout := r.u64(), r.text(), int64(r.u64())
		return then(r, func() (uint64, error) {
			ctx, end := x.within(timeout)
			defer end()
			return x.table.List(ctx, h, prefix)
		})
	}), true, always},
	opEntries: {(*conn).entries, false, nil},
	opPost: {posted(func(x *conn, r *request) (uint64, *transfer.Transfer, error) {
		h, what, blocks, m := r.u64(), int32(r.u32()), r.blocks(), r.modes()
		if err := r.failed(); err != nil {
			return 0, nil, err
		}
		return x.table.Post(h, what, blocks, m)
	}), true, nil},
	opPostMemory: {posted(func(x *conn, r *request) (uint64, *transfer.Transfer, error) {
		h, what, theirs, far, offset, m := r.u64(), int32(r.u32()), r.memory(), r.u64(), r.u64(), r.modes()
		if err := r.failed(); err != nil {
			return 0, nil, err
		}
		return x.table.PostMemory(h, what, far, offset, m, func() (*mem.Region, error) { return x.adopt("", theirs) })
	}), true, func(_ *conn, r *request) bool {
		look := *r
		look.u64()
		look.u32()
		return look.memory().token != nil
	}},
	opNotify: {posted(func(x *conn, r *request) (uint64, *transfer.Transfer, error) {
		h, m := r.u64(), r.modes()
		if err := r.failed(); err != nil {
			return 0, nil, err
		}
		return x.table.Notify(h, m)
	}), true, nil},
	opPrepare: {made(func(x *conn, r *request) (uint64, error) {
		h, what, blocks, m := r.u64(), int32(r.u32()), r.blocks(), r.modes()
		return then(r, func() (uint64, error) { return x.table.Prepare(h, what, blocks, m) })
	}), true, always},
	opRepost:   {(*conn).repost, true, nil},
	opWait:     {(*conn).wait, false, running},
	opWatch:    {done(func(x *conn, r *request) error { return x.table.Watch(r.u64()) }), false, nil},
	opProgress: {(*conn).progress, false, nil},
	opCancel:   {(*conn).cancel, false, nil},
	opExplain: {said(func(x *conn, h uint64) (string, error) {
		t, err := x.table.Transfer(h)
		if err != nil {
			return "", err
		}
		return t.Explain().String(), nil
	}), false, nil},
	opEventFD: {(*conn).event, false, nil},
	opEnded:   {(*conn).ended, false, nil},
	opSubscribe: {done(func(x *conn, r *request) error {
		h, tag := r.u64(), r.u32()
		return only(r, func() error { return x.table.Subscribe(h, tag) })
	}), false, nil},
	opReceive: {(*conn).receive, false, always},
	opRx: {made(func(x *conn, r *request) (uint64, error) {
		h, name, queue := r.u64(), r.text(), int32(r.u32())
		return then(r, func() (uint64, error) { return x.table.Rx(h, name, int(queue)) })
	}), true, nil},
	opBurst: {(*conn).burst, false, always},
	opSend:  {(*conn).sendPackets, false, always},
	opBatch: {(*conn).batch, false, nil},
	opTag:   {(*conn).tag, false, nil},
}

// then goes on with f if all of a request could be read.
func then[T any](r *request, f func() (T, error)) (x T, err error) {
	if err := r.failed(); err != nil {
		return x, err
	}
	return f()
}

func only(r *request, f func() error) error {
	_, err := then(r, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// made is a call that makes something: its result is the handle.
func made(f func(*conn, *request) (uint64, error)) func(*conn, *request) (*answer, error) {
	return func(x *conn, r *request) (*answer, error) {
		h, err := f(x, r)
		return &answer{result: h}, err
	}
}

// posted is a call that begins a transfer. The answer says whether all of it is in place already.
func posted(f func(*conn, *request) (uint64, *transfer.Transfer, error)) func(*conn, *request) (*answer, error) {
	return func(x *conn, r *request) (*answer, error) {
		h, t, err := f(x, r)
		if err != nil {
			return nil, err
		}
		a := &answer{result: h}
		if ended(t) && t.Err() == nil {
			a.u32(1)
		} else {
			a.u32(0)
		}
		return a, nil
	}
}

// said is a call of a handle alone that returns text.
func said(f func(*conn, uint64) (string, error)) func(*conn, *request) (*answer, error) {
	return func(x *conn, r *request) (*answer, error) {
		h := r.u64()
		return then(r, func() (*answer, error) {
			s, err := f(x, h)
			a := &answer{}
			a.text(s)
			return a, err
		})
	}
}

// done is a call that succeeds or fails.
func done(f func(*conn, *request) error) func(*conn, *request) (*answer, error) {
	return func(x *conn, r *request) (*answer, error) { return &answer{}, f(x, r) }
}

func ended(t *transfer.Transfer) bool {
	select {
	case <-t.Done():
		return true
	default:
		return false
	}
}

// running reports whether a request to wait has something to wait for. It leaves the request as it
// is.
func running(x *conn, r *request) bool {
	look := *r
	h, timeout := look.u64(), look.u64()
	t, err := x.table.Transfer(h)
	return err == nil && timeout != 0 && !ended(t)
}

func (x *conn) wait(r *request) (*answer, error) {
	h, timeout := r.u64(), int64(r.u64())
	return then(r, func() (*answer, error) {
		t, err := x.table.Transfer(h)
		if err != nil {
			return nil, err
		}
		if !ended(t) { // also when the time is over
			ctx, end := x.within(timeout)
			defer end()
			if err := t.Wait(ctx); !ended(t) {
				return nil, fmt.Errorf("the transfer goes on: %w", err)
			}
		}
		return &answer{}, t.Err()
	})
}

// repost begins a transfer of a prepared list, under the handle that the client has given it: so
// the client need not wait for an answer.
func (x *conn) repost(r *request) (*answer, error) {
	h, as := r.u64(), r.u64()
	return then(r, func() (*answer, error) {
		if as&named == 0 || as <= x.named {
			return nil, fmt.Errorf("agent: handle %d for a transfer: expected one with bit %d, larger than %d: %w", as,
				bits.TrailingZeros64(named), x.named, abi.ErrInvalid)
		}
		x.named = as
		x.table.RepostAs(h, as)
		return &answer{}, nil
	})
}

func (x *conn) close(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		err := x.table.Close(h)
		if err == nil {
			x.drop(h)
		}
		return &answer{}, err
	})
}

func (x *conn) alloc(r *request) (*answer, error) {
	name, size, flags := r.text(), r.u64(), r.u32()
	return then(r, func() (*answer, error) {
		h, err := x.table.Alloc(name, size, flags)
		if err != nil {
			return nil, err
		}
		m, err := x.table.Region(h)
		if err != nil {
			return nil, err
		}
		l, err := m.Lease() // the descriptor is the region's
		if err != nil {
			return nil, err
		}
		a := &answer{result: h, fd: m.FD(), pass: true, close: func() { l.Release() }}
		a.u64(m.Len())
		return a, nil
	})
}

// log is the oldest record of the client's systems.
func (x *conn) log(r *request) (*answer, error) {
	room, timeout := r.u64(), int64(r.u64())
	return then(r, func() (*answer, error) {
		ctx, end := x.within(timeout)
		defer end()
		a := &answer{}
		a.text(x.table.Log(ctx, room))
		return a, nil
	})
}

func (x *conn) dma(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		can, why, err := x.table.DMA(h)
		a := &answer{}
		if can {
			a.result = 1
		}
		a.text(why)
		return a, err
	})
}

// adopt is a region of the client's memory.
func (x *conn) adopt(name string, m memory) (*mem.Region, error) {
	if m.size == 0 { // as of a tensor without elements
		return mem.Adopt(name, nil, nil)
	}
	if m.address == 0 || m.size > 1<<47 {
		return nil, fmt.Errorf("memory of %d bytes: expected an address and at most 2^47 bytes: %w", m.size,
			abi.ErrInvalid)
	}
	if m.token != nil {
		return abi.OpenDevice(name, m.bus, m.size, m.token)
	}
	if x.far == nil {
		return nil, x.noFar
	}
	return x.far.Region(name, m.address, m.size)
}

func (x *conn) describe(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		d, err := x.table.Describe(h)
		if err != nil || d == nil {
			return &answer{}, err
		}
		a := &answer{result: 1}
		a.tensor(d)
		return a, nil
	})
}

func (x *conn) tag(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		tag, err := x.table.Tag(h)
		if err != nil || tag == [16]byte{} {
			return &answer{}, err
		}
		a := &answer{result: 1}
		a.u64(binary.LittleEndian.Uint64(tag[:8]))
		a.u64(binary.LittleEndian.Uint64(tag[8:]))
		return a, nil
	})
}

func (x *conn) lookup(r *request) (*answer, error) {
	h, name, timeout := r.u64(), r.text(), int64(r.u64())
	return then(r, func() (*answer, error) {
		ctx, end := x.within(timeout)
		defer end()
		far, remote, err := x.table.Lookup(ctx, h, name)
		if err != nil {
			return nil, err
		}
		a := &answer{result: far}
		a.u64(remote.Size())
		a.u32(abi.RightsOf(remote))
		return a, nil
	})
}

// maxEntries is how many one answer has.
const maxEntries = 1024

func (x *conn) entries(r *request) (*answer, error) {
	h, n := r.u64(), r.u32()
	return then(r, func() (*answer, error) {
		all, err := x.table.Entries(h, int(min(n, maxEntries)), nil)
		a := &answer{result: uint64(len(all))}
		for _, e := range all {
			a.text(e.Name)
			a.u64(e.Size())
			a.u32(abi.RightsOf(e))
			if e.Tensor == nil {
				a.u32(0)
				continue
			}
			a.u32(1)
			a.tensor(e.Tensor)
		}
		return a, err
	})
}

func (x *conn) progress(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		t, err := x.table.Transfer(h)
		if err != nil {
			return nil, err
		}
		return &answer{result: math.Float64bits(t.Progress())}, nil
	})
}

func (x *conn) cancel(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		t, err := x.table.Transfer(h)
		if err != nil || !t.Cancel() {
			return &answer{}, err
		}
		return &answer{result: 1}, nil
	})
}

// event passes the client a descriptor of its own of the eventfd of a system.
func (x *conn) event(r *request) (*answer, error) {
	h := r.u64()
	return then(r, func() (*answer, error) {
		fd, err := x.table.DupEvent(h)
		if err != nil {
			return nil, err
		}
		return &answer{fd: fd, pass: true, close: func() { sys.Close(fd) }}, nil
	})
}

// maxEnded is how many one answer has.
const maxEnded = 4096

func (x *conn) ended(r *request) (*answer, error) {
	h, n := r.u64(), r.u32()
	return then(r, func() (*answer, error) {
		var to [maxEnded]uint64
		k, err := x.table.Ended(h, to[:min(n, maxEnded)])
		a := &answer{result: uint64(k)}
		for _, t := range to[:k] {
			a.u64(t)
		}
		return a, err
	})
}

func (x *conn) receive(r *request) (*answer, error) {
	h, timeout := r.u64(), int64(r.u64())
	return then(r, func() (*answer, error) {
		ctx, end := x.within(timeout)
		defer end()
		in, ok, err := x.table.Receive(ctx, h)
		if err != nil || !ok {
			return &answer{}, err
		}
		a := &answer{result: 1}
		a.u32(in.Tag)
		a.u64(in.Bytes)
		a.text(in.Peer.Name())
		a.text(string(in.Msg))
		return a, nil
	})
}
