package ibv

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Times is what a completion queue notes of when its completions came.
type Times uint8

// The kinds.
const (
	TimesNone   Times = iota
	TimesDevice       // ticks of the device's clock (DeviceAttr.ClockKHz, Context.Clock)
	TimesWall         // nanoseconds since 1970, of a device whose clock is set
)

func (t Times) String() string {
	return oneOf(uint32(t), "none", "of the device's clock", "of the wall clock")
}

// createCQEx makes a completion queue that notes times.
func (c *Context) createCQEx(s CQSpec, channel uintptr) (uintptr, *Error) {
	const op = "create_cq_ex"
	f := c.x.createCQExFn()
	if f == 0 || s.Times > TimesWall {
		return 0, unsupported(op, c.name, fmt.Sprintf("the driver has no completion queues with times %v", s.Times))
	}
	t, err := newTemp[cCQInitEx]()
	if err != nil {
		return 0, &Error{Op: op, On: c.name, Errno: sys.ENOMEM}
	}
	defer t.free()
	*t.v = cCQInitEx{cqe: uint32(s.Entries), channel: channel, vector: uint32(s.Vector),
		wcFlags: wcExStandard | wcExDeviceTime}
	if s.Times == TimesWall {
		t.v.wcFlags = wcExStandard | wcExWallTime
	}
	h, e := made(op, c.name, f, c.h, t.p())
	if e != nil && (e.Errno == sys.EOPNOTSUPP || e.Errno == sys.EINVAL || e.Errno == sys.ENOSYS) {
		e.Kind, e.Hint = ErrUnsupported, fmt.Sprintf("the device does not note times %v, or not for %d entries",
			s.Times, s.Entries)
	}
	return h, e
}

// extend looks at the functions by which the queue at h is polled: they must be code, since they
// are called.
func (q *CQ) extend(h uintptr) (err error) {
	x := dl.At[cCQEx](h)
	code, err := executableNow()
	if err != nil {
		return err
	}
	at := x.deviceTime
	if q.times == TimesWall {
		at = x.wallTime
	}
	for name, f := range map[string]dl.Func{"start_poll": x.startPoll, "next_poll": x.nextPoll, "end_poll": x.endPoll,
		"read_opcode":     x.opcode,
		"read_vendor_err": x.vendorErr, "read_byte_len": x.byteLen, "read_qp_num": x.qpn, "read_wc_flags": x.flags,
		"the reader of times": at} {
		if !code.has(f) {
			return layoutError("ibv_cq_ex."+name, hex(uintptr(f)), "the address of a function")
		}
	}
	if q.start, err = newTemp[cPollAttr](); err == nil {
		q.ex = x
	}
	return err
}

// PollTimes is Poll with the time of each completion, as CQSpec.Times says, in at, which is as long
// as wc; the queue was made with times. Of a completion only ID, Status, Opcode, Len, QPN, Flags
// and VendorErr are known.
func (q *CQ) PollTimes(wc []WC, at []uint64) (int, error) {
	switch {
	case q.h == 0:
		return 0, q.usable("poll_cq")
	case q.ex == nil || len(at) < len(wc):
		return 0, invalid("poll_cq", q.name,
			"times of completions: expected a queue that was made with CQSpec.Times, and room for each")
	case len(wc) == 0:
		return 0, nil
	}
	return q.pollEx(wc, at)
}

// pollEx takes completions one by one. The library holds the queue from start to end.
func (q *CQ) pollEx(wc []WC, at []uint64) (n int, err error) {
	x, h := q.ex, q.h
	ret := int32(x.startPoll.Call2(h, q.start.p()))
	if ret == int32(sys.ENOENT) {
		if q.overrun.Load() {
			return 0, q.pollError(0)
		}
		return 0, nil
	}
	if ret != 0 {
		return 0, q.pollError(-max(ret, -ret))
	}
	read := x.deviceTime
	if q.times == TimesWall {
		read = x.wallTime
	}
	for {
		w := &wc[n]
		*w = WC{id: x.id, status: x.status, qpn: uint32(x.qpn.Call1(h))}
		if w.status == uint32(Success) {
			w.opcode, w.length, w.flags = uint32(x.opcode.Call1(h)), uint32(x.byteLen.Call1(h)),
				uint32(x.flags.Call1(h))
		} else {
			w.vendorErr = uint32(x.vendorErr.Call1(h))
		}
		if at != nil {
			at[n] = uint64(read.Call1(h))
		}
		if n++; n == len(wc) {
			break
		}
		if ret = int32(x.nextPoll.Call1(h)); ret != 0 {
			break
		}
	}
	x.endPoll.Call1(h)
	if ret != 0 && ret != int32(sys.ENOENT) {
		return n, q.pollError(-max(ret, -ret))
	}
	return n, nil
}

// Clock is the device's clock now, in the ticks of completions with TimesDevice.
func (c *Context) Clock() (uint64, error) {
	const op = "query_rt_values"
	if err := c.usable(op); err != nil {
		return 0, err
	}
	f := c.x.queryRTFn()
	if f == 0 {
		return 0, unsupported(op, c.name, "the driver does not show its clock")
	}
	t, err := newTemp[cValuesEx]()
	if err != nil {
		return 0, err
	}
	defer t.free()
	t.v.mask = valuesRawClock
	if err := c.returned(op, c.name, f, c.h, t.p()); err != nil {
		return 0, err
	}
	if t.v.mask&valuesRawClock == 0 {
		return 0, unsupported(op, c.name, "the driver does not show its clock")
	}
	return uint64(t.v.sec)*1_000_000_000 + uint64(t.v.nsec), nil // drivers have ticks in tv_nsec alone
}
