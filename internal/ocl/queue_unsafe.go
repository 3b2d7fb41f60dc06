package ocl

import (
	"runtime"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// Queue is a command queue: in order, with profiling. Its methods belong to one goroutine at a
// time. They allocate nothing: arguments are collected in the queue, and what the library reads or
// writes through a pointer is C memory.
type Queue struct {
	l    *Library
	q    uintptr
	args [dl.MaxArgs]uintptr
	mem  []byte
	c    *scratch
}

// scratch is what calls point at.
type scratch struct {
	global, local uintptr
	event         uintptr
	wait          uintptr
	pattern       uint32
	code          int32
}

// NewQueue makes a queue of the device.
func (l *Library) NewQueue(c Context, d Device) (*Queue, error) {
	const properties, profiling = 0x1093, 1 << 1
	mem, err := dl.Alloc(int(unsafe.Sizeof(scratch{})))
	if err != nil {
		return nil, err
	}
	var code int32
	q := &Queue{l: l, mem: mem, c: dl.At[scratch](dl.Address(mem))}
	if f := l.fn[createQueueWithProperties]; f != 0 {
		list := [3]uint64{properties, profiling, 0}
		q.q = f.Call4(uintptr(c), uintptr(d), uintptr(unsafe.Pointer(&list)), uintptr(unsafe.Pointer(&code)))
	} else {
		q.q = l.fn[createQueue].Call4(uintptr(c), uintptr(d), profiling, uintptr(unsafe.Pointer(&code)))
	}
	if err := createQueue.check(code); err != nil {
		dl.Free(mem)
		return nil, err
	}
	return q, nil
}

// Close gives the queue back when its commands have ended, for which it waits.
func (q *Queue) Close() error {
	err := q.Finish()
	if rerr := releaseQueue.check(int32(q.l.fn[releaseQueue].Call1(q.q))); err == nil {
		err = rerr
	}
	dl.Free(q.mem)
	return err
}

// call calls f with the first n of args.
func (q *Queue) call(f fn, n int) error {
	return f.check(int32(q.l.fn[f].Call(q.args[:n]...)))
}

// rw enqueues a read or a write of the host's memory at p.
func (q *Queue) rw(f fn, m Mem, off uint64, p uintptr, n uint64, wait bool) error {
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8] = q.q, uintptr(m), 0, uintptr(off), uintptr(n), p, 0, 0, 0
	if wait {
		a[2] = 1
	}
	return q.call(f, 9)
}

// Write enqueues a copy of n bytes of the host at p, which stay there, to a buffer.
func (q *Queue) Write(m Mem, off uint64, p uintptr, n uint64) error {
	return q.rw(enqueueWrite, m, off, p, n, false)
}

// Read enqueues a copy of n bytes of a buffer to the host at p.
func (q *Queue) Read(p uintptr, m Mem, off, n uint64) error {
	return q.rw(enqueueRead, m, off, p, n, false)
}

// WriteBytes copies Go memory, which is in the heap, to a buffer, and waits for that.
func (q *Queue) WriteBytes(m Mem, off uint64, b []byte) error {
	var pin runtime.Pinner
	pin.Pin(&b[0])
	defer pin.Unpin()
	return q.rw(enqueueWrite, m, off, uintptr(unsafe.Pointer(&b[0])), uint64(len(b)), true)
}

// ReadBytes copies a buffer to Go memory, which is in the heap, and waits for that.
func (q *Queue) ReadBytes(b []byte, m Mem, off uint64) error {
	var pin runtime.Pinner
	pin.Pin(&b[0])
	defer pin.Unpin()
	return q.rw(enqueueRead, m, off, uintptr(unsafe.Pointer(&b[0])), uint64(len(b)), true)
}

// Copy enqueues a copy between buffers.
func (q *Queue) Copy(dst Mem, dstOff uint64, src Mem, srcOff, n uint64) error {
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8] = q.q, uintptr(src), uintptr(dst), uintptr(srcOff),
		uintptr(dstOff), uintptr(n), 0, 0, 0
	return q.call(enqueueCopy, 9)
}

// Fill enqueues a fill of a buffer with the lower width bytes of pattern.
func (q *Queue) Fill(m Mem, off, n uint64, pattern uint32, width int) error {
	q.c.pattern = pattern
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8] = q.q, uintptr(m), uintptr(unsafe.Pointer(&q.c.pattern)),
		uintptr(width), uintptr(off), uintptr(n), 0, 0, 0
	return q.call(enqueueFill, 9)
}

// SVMCopy enqueues a copy between addresses, of which each is shared virtual memory or memory of
// the host that stays.
func (q *Queue) SVMCopy(dst, src uintptr, n uint64) error { return q.svmCopy(dst, src, n, 0) }

func (q *Queue) svmCopy(dst, src uintptr, n uint64, wait uintptr) error {
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7] = q.q, wait, dst, src, uintptr(n), 0, 0, 0
	return q.call(svmMemcpy, 8)
}

// SVMWriteBytes copies Go memory, which is in the heap, to shared virtual memory, and waits for
// that.
func (q *Queue) SVMWriteBytes(p uintptr, b []byte) error {
	var pin runtime.Pinner
	pin.Pin(&b[0])
	defer pin.Unpin()
	return q.svmCopy(p, uintptr(unsafe.Pointer(&b[0])), uint64(len(b)), 1)
}

// SVMReadBytes copies shared virtual memory to Go memory, which is in the heap, and waits for that.
func (q *Queue) SVMReadBytes(b []byte, p uintptr) error {
	var pin runtime.Pinner
	pin.Pin(&b[0])
	defer pin.Unpin()
	return q.svmCopy(uintptr(unsafe.Pointer(&b[0])), p, uint64(len(b)), 1)
}

// SVMFill enqueues a fill of shared virtual memory.
func (q *Queue) SVMFill(p uintptr, n uint64, pattern uint32, width int) error {
	q.c.pattern = pattern
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7] = q.q, p, uintptr(unsafe.Pointer(&q.c.pattern)), uintptr(width),
		uintptr(n), 0, 0, 0
	return q.call(svmFill, 8)
}

// Map makes a pinned buffer visible to the host, for as long as it is mapped, and waits for that.
func (q *Queue) Map(m Mem, size uint64) (uintptr, error) {
	const readWrite = 1<<0 | 1<<1
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9] = q.q, uintptr(m), 1, readWrite, 0, uintptr(size), 0, 0,
		0, uintptr(unsafe.Pointer(&q.c.code))
	p := q.l.fn[enqueueMap].Call(a[:10]...)
	return p, enqueueMap.check(q.c.code)
}

// Unmap enqueues the end of a mapping.
func (q *Queue) Unmap(m Mem, p uintptr) error {
	return enqueueUnmap.check(int32(q.l.fn[enqueueUnmap].Call6(q.q, uintptr(m), p, 0, 0, 0)))
}

// Launch enqueues a kernel with its arguments as they are now: groups of local items each.
func (q *Queue) Launch(k Kernel, groups, local uint32) error {
	q.c.global, q.c.local = uintptr(groups)*uintptr(local), uintptr(local)
	a := &q.args
	a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8] = q.q, uintptr(k), 1, 0, uintptr(unsafe.Pointer(&q.c.global)),
		uintptr(unsafe.Pointer(&q.c.local)), 0, 0, 0
	return q.call(enqueueKernel, 9)
}

// Marker enqueues an event that happens when all before it is done. The caller releases it.
func (q *Queue) Marker() (Event, error) {
	err := enqueueMarker.check(int32(q.l.fn[enqueueMarker].Call4(q.q, 0, 0, uintptr(unsafe.Pointer(&q.c.event)))))
	return Event(q.c.event), err
}

// WaitFor lets what comes later wait for an event of any queue of the context.
func (q *Queue) WaitFor(e Event) error {
	q.c.wait = uintptr(e)
	return enqueueBarrier.check(int32(q.l.fn[enqueueBarrier].Call4(q.q, 1, uintptr(unsafe.Pointer(&q.c.wait)), 0)))
}

// Flush lets the commands begin.
func (q *Queue) Flush() error { return flush.check(int32(q.l.fn[flush].Call1(q.q))) }

// Finish waits until all commands have ended.
func (q *Queue) Finish() error { return finish.check(int32(q.l.fn[finish].Call1(q.q))) }
