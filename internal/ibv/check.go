package ibv

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// abiExtended in abi_compat says that there is a struct verbs_context around the context
// (__VERBS_ABI_IS_EXTENDED).
const abiExtended = ^uintptr(0)

// check calls functions of the library whose answers are known and need no device.
func (l *Library) check() error {
	for status, want := range map[uintptr]string{0: "success", 5: "Work Request Flushed Error",
		10: "remote access error"} {
		if got := dl.GoString(l.f.statusText.Call1(status)); got != want {
			return layoutError(fmt.Sprintf("ibv_wc_status_str(%d)", status), strconv.Quote(got), strconv.Quote(want))
		}
	}
	if got := dl.GoString(l.f.portStateText.Call1(4)); got != "active" {
		return layoutError("ibv_port_state_str(4)", strconv.Quote(got), `"active"`)
	}
	if got := int32(l.f.rateToMbps.Call1(16)); got != 103125 {
		return layoutError("ibv_rate_to_mbps(IBV_RATE_100_GBPS)", got, 103125)
	}
	return nil
}

// checkDevice compares what functions say of a device with what its structure says.
func (l *Library) checkDevice(dev uintptr) error {
	if dev == 0 || dev%8 != 0 {
		return layoutError("the address of a device", dev, "an aligned address")
	}
	if got := l.f.getDeviceName.Call1(dev); got != dev+nameOffset {
		return layoutError("the place of a device's name", int64(got-dev), nameOffset)
	}
	if t := dl.At[cDevice](dev).transport; t < -1 || t > 4 {
		return layoutError("the transport of a device", t, "-1 to 4")
	}
	return nil
}

// checkContext looks at an opened device before anything else is done with it.
func checkContext(ctx, dev uintptr, code executable) error {
	c := dl.At[cContext](ctx)
	if c.device != dev {
		return layoutError("ibv_context.device", hex(c.device), hex(dev))
	}
	if c.numCompVectors < 1 || c.numCompVectors > 1<<16 {
		return layoutError("ibv_context.num_comp_vectors", c.numCompVectors, "1 to 65536")
	}
	if c.cmdFD < -1 || !sys.IsOpen(int(c.asyncFD)) {
		return layoutError("the descriptors of ibv_context", fmt.Sprint(c.cmdFD, " and ", c.asyncFD),
			"those of an open device")
	}
	for name, f := range map[string]dl.Func{"poll_cq": c.ops.pollCQ, "req_notify_cq": c.ops.reqNotifyCQ,
		"post_send": c.ops.postSend,
		"post_recv": c.ops.postRecv} {
		if !code.has(f) {
			return layoutError("ibv_context_ops."+name, hex(uintptr(f)), "the address of a function")
		}
	}
	for name, f := range map[string]dl.Func{"post_srq_recv": c.ops.postSRQRecv, "alloc_mw": c.ops.allocMW,
		"dealloc_mw": c.ops.deallocMW} {
		if f != 0 && !code.has(f) {
			return layoutError("ibv_context_ops."+name, hex(uintptr(f)), "the address of a function, or 0")
		}
	}
	return checkExtended(extended(ctx), c.abiCompat, code)
}

// checkExtended looks at the part before the context. Without it the device is older than 2012.
func checkExtended(x *cExtended, compat uintptr, code executable) error {
	if x == nil {
		return layoutError("ibv_context.abi_compat", hex(compat), hex(abiExtended))
	}
	// It begins with at least close_xrcd, and new fields of later versions make it longer, by
	// addresses.
	if low, high := sizeOf[cContext]()+24, sizeOf[cContext]()+8192; x.sz < low || x.sz > high || x.sz%8 != 0 {
		return layoutError("verbs_context.sz", x.sz, fmt.Sprintf("%d to %d", low, high))
	}
	for name, f := range map[string]dl.Func{"query_port": x.queryPortFn(), "query_rt_values": x.queryRTFn(),
		"create_cq_ex":    x.createCQExFn(),
		"query_device_ex": x.queryDeviceExFn(), "ibv_destroy_flow": x.destroyFlowFn(),
		"ibv_create_flow": x.createFlowFn(), "create_qp_ex": x.createQPExFn(),
		"get_srq_num": x.getSRQNumFn(), "create_srq_ex": x.createSRQExFn(), "open_xrcd": x.openXRCDFn(),
		"close_xrcd": x.closeXRCDFn()} {
		if f != 0 && !code.has(f) {
			return layoutError("verbs_context."+name, hex(uintptr(f)), "the address of a function, or 0")
		}
	}
	return nil
}

func fnAt(x *cExtended, off uintptr, f func() dl.Func) dl.Func {
	if !x.has(off) {
		return 0
	}
	return f()
}

// The optional functions; 0 where the library is older than they are, or the driver lacks them.
func (x *cExtended) queryPortFn() dl.Func {
	return fnAt(x, offQueryPort, func() dl.Func { return x.queryPort })
}
func (x *cExtended) queryDeviceExFn() dl.Func {
	return fnAt(x, offQueryDeviceEx, func() dl.Func { return x.queryDeviceEx })
}
func (x *cExtended) queryRTFn() dl.Func {
	return fnAt(x, offQueryRT, func() dl.Func { return x.queryRTValues })
}
func (x *cExtended) createCQExFn() dl.Func {
	return fnAt(x, offCreateCQEx, func() dl.Func { return x.createCQEx })
}
func (x *cExtended) destroyFlowFn() dl.Func {
	return fnAt(x, offDestroyFlow, func() dl.Func { return x.destroyFlow })
}
func (x *cExtended) createFlowFn() dl.Func {
	return fnAt(x, offCreateFlow, func() dl.Func { return x.createFlow })
}
func (x *cExtended) createQPExFn() dl.Func {
	return fnAt(x, offCreateQPEx, func() dl.Func { return x.createQPEx })
}
func (x *cExtended) getSRQNumFn() dl.Func {
	return fnAt(x, offGetSRQNum, func() dl.Func { return x.getSRQNum })
}
func (x *cExtended) createSRQExFn() dl.Func {
	return fnAt(x, offCreateSRQEx, func() dl.Func { return x.createSRQEx })
}
func (x *cExtended) openXRCDFn() dl.Func {
	return fnAt(x, offOpenXRCD, func() dl.Func { return x.openXRCD })
}
func (x *cExtended) closeXRCDFn() dl.Func {
	return fnAt(x, offCloseXRCD, func() dl.Func { return x.closeXRCD })
}

// executable are the ranges of memory that hold code, as the kernel lists them.
type executable [][2]uintptr

// executableNow reads them; drivers are loaded when the first device is looked for.
func executableNow() (executable, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, fmt.Errorf("ibv: %w", err)
	}
	defer f.Close()
	var out executable
	s := bufio.NewScanner(f)
	for s.Scan() {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 || len(fields[1]) < 3 || fields[1][2] != 'x' {
			continue
		}
		from, to, ok := strings.Cut(fields[0], "-")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if ok && err1 == nil && err2 == nil {
			out = append(out, [2]uintptr{uintptr(a), uintptr(b)})
		}
	}
	return out, s.Err()
}

func (e executable) has(f dl.Func) bool {
	for _, r := range e {
		if uintptr(f) >= r[0] && uintptr(f) < r[1] {
			return true
		}
	}
	return false
}

func hex(v uintptr) string { return fmt.Sprintf("%#x", v) }

// same compares fields of an object that the library made with what it was made of. The first that
// differs is the error.
func same(pairs ...field) error {
	for _, p := range pairs {
		if p.got != p.want {
			return layoutError(p.name, fmt.Sprintf("%#x", p.got), fmt.Sprintf("%#x", p.want))
		}
	}
	return nil
}

type field struct {
	name      string
	got, want uint64
}
