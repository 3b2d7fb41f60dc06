package ibv

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Options say which library to load.
type Options struct {
	Path string // a file, for tests and for libraries in unusual places; "" is the loader's libibverbs.so.1
}

// Library is a loaded libibverbs. It stays loaded until the process ends, as its drivers require.
// It may be used by several goroutines, like everything in this package that does not say
// otherwise.
type Library struct {
	lib *dl.Library
	f   functions
}

// functions are the symbols of libibverbs that this package calls. What is found by SymbolVersion
// has that meaning for ever.
type functions struct {
	getDeviceList, freeDeviceList, getDeviceName, openDevice, closeDevice       dl.Func
	queryDevice, queryPort, queryGID, queryPKey                                 dl.Func
	queryGIDTable                                                               dl.Func // optional
	allocPD, deallocPD                                                          dl.Func
	regMR, deregMR                                                              dl.Func
	regMRIOVA, regMRIOVA2, regDMABufMR                                          dl.Func // optional
	createChannel, destroyChannel, createCQ, destroyCQ, getCQEvent, ackCQEvents dl.Func
	createSRQ, destroySRQ                                                       dl.Func
	createQP, modifyQP, queryQP, destroyQP                                      dl.Func
	createAH, destroyAH                                                         dl.Func
	getAsyncEvent, ackAsyncEvent                                                dl.Func
	statusText, portStateText, rateToMbps                                       dl.Func
}

// Load loads libibverbs and checks that it is what this package was built for. Errors wrap
// ErrUnavailable, with the package to install, or ErrLayout.
func Load(o Options) (*Library, error) {
	names := []string{"libibverbs.so.1"}
	if o.Path != "" {
		names = []string{o.Path}
	}
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, fmt.Errorf("ibv: %w: libibverbs cannot be loaded: install it (Debian: apt-get install "+
			"libibverbs1 ibverbs-providers; Fedora: dnf install "+
			"libibverbs): %w", ErrUnavailable, err)
	}
	l := &Library{lib: lib}
	if err = l.resolve(); err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, errors.Join(err, lib.Close())
	}
	return l, nil
}

func (l *Library) resolve() error {
	f := &l.f
	for _, s := range []struct {
		to            *dl.Func
		name, version string
		optional      bool
	}{
		{&f.getDeviceList, "ibv_get_device_list", "IBVERBS_1.1", false},
		{&f.freeDeviceList, "ibv_free_device_list", "IBVERBS_1.1", false},
		{&f.getDeviceName, "ibv_get_device_name", "IBVERBS_1.1", false},
		{&f.openDevice, "ibv_open_device", "IBVERBS_1.1", false},
		{&f.closeDevice, "ibv_close_device", "IBVERBS_1.1", false},
		{&f.queryDevice, "ibv_query_device", "IBVERBS_1.1", false},
		{&f.queryPort, "ibv_query_port", "IBVERBS_1.1", false},
		{&f.queryGID, "ibv_query_gid", "IBVERBS_1.1", false},
		{&f.queryPKey, "ibv_query_pkey", "IBVERBS_1.1", false},
		{&f.queryGIDTable, "_ibv_query_gid_table", "IBVERBS_1.11", true},
		{&f.allocPD, "ibv_alloc_pd", "IBVERBS_1.1", false},
		{&f.deallocPD, "ibv_dealloc_pd", "IBVERBS_1.1", false},
		{&f.regMR, "ibv_reg_mr", "IBVERBS_1.1", false},
		{&f.regMRIOVA, "ibv_reg_mr_iova", "IBVERBS_1.7", true},
		{&f.regMRIOVA2, "ibv_reg_mr_iova2", "IBVERBS_1.8", true},
		{&f.regDMABufMR, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", true},
		{&f.deregMR, "ibv_dereg_mr", "IBVERBS_1.1", false},
		{&f.createChannel, "ibv_create_comp_channel", "IBVERBS_1.0", false},
		{&f.destroyChannel, "ibv_destroy_comp_channel", "IBVERBS_1.0", false},
		{&f.createCQ, "ibv_create_cq", "IBVERBS_1.1", false},
		{&f.destroyCQ, "ibv_destroy_cq", "IBVERBS_1.1", false},
		{&f.getCQEvent, "ibv_get_cq_event", "IBVERBS_1.1", false},
		{&f.ackCQEvents, "ibv_ack_cq_events", "IBVERBS_1.1", false},
		{&f.createSRQ, "ibv_create_srq", "IBVERBS_1.1", false},
		{&f.destroySRQ, "ibv_destroy_srq", "IBVERBS_1.1", false},
		{&f.createQP, "ibv_create_qp", "IBVERBS_1.1", false},
		{&f.modifyQP, "ibv_modify_qp", "IBVERBS_1.1", false},
		{&f.queryQP, "ibv_query_qp", "IBVERBS_1.1", false},
		{&f.destroyQP, "ibv_destroy_qp", "IBVERBS_1.1", false},
		{&f.createAH, "ibv_create_ah", "IBVERBS_1.1", false},
		{&f.destroyAH, "ibv_destroy_ah", "IBVERBS_1.1", false},
		{&f.getAsyncEvent, "ibv_get_async_event", "IBVERBS_1.1", false},
		{&f.ackAsyncEvent, "ibv_ack_async_event", "IBVERBS_1.1", false},
		{&f.statusText, "ibv_wc_status_str", "IBVERBS_1.1", false},
		{&f.portStateText, "ibv_port_state_str", "IBVERBS_1.1", false},
		{&f.rateToMbps, "ibv_rate_to_mbps", "IBVERBS_1.1", false},
	} {
		fn, err := l.lib.SymbolVersion(s.name, s.version)
		if err != nil && !s.optional {
			return fmt.Errorf("ibv: %w: %s: %w", ErrLayout, l.lib.Name(), err)
		}
		*s.to = fn
	}
	return nil
}

// listing is held while a device list exists, so that two goroutines do not have the library scan
// the machine at once.
var listing sync.Mutex

// Device is an RDMA device of this machine, as it was when Devices found it. It needs no Close.
type Device struct {
	lib  *Library
	name string
	path string
}

// Devices are the RDMA devices of this machine. That there is none is an error that wraps
// ErrUnavailable and says what to do.
func (l *Library) Devices() ([]*Device, error) {
	var out []*Device
	err := l.list(func(dev uintptr) error {
		d := dl.At[cDevice](dev)
		name := dl.GoString(l.f.getDeviceName.Call1(dev))
		out = append(out, &Device{lib: l, name: name, path: text(d.ibdevPath[:])})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("ibv: %w: libibverbs finds no device: the card's kernel driver or its part of "+
			"ibverbs-providers is missing (rdma link shows what "+
			"the kernel has; modprobe ib_uverbs; apt-get install ibverbs-providers); without a card, Soft-RoCE: rdma "+
			"link add rxe0 type rxe netdev eth0",
			ErrUnavailable)
	}
	return out, nil
}

// list calls f with each device of the machine; the list is given back afterwards.
func (l *Library) list(f func(dev uintptr) error) error {
	listing.Lock()
	defer listing.Unlock()
	n, err := newTemp[int32]()
	if err != nil {
		return err
	}
	defer n.free()
	p, errno := l.f.getDeviceList.CallErrno(n.p())
	if p == 0 {
		e := failed("get_device_list", "", sys.Errno(errno))
		e.Kind = ErrUnavailable
		e.Hint = "the kernel's RDMA subsystem does not answer: modprobe ib_uverbs"
		return e
	}
	defer l.f.freeDeviceList.Call1(p)
	if *n.v < 0 || *n.v > maxDevices {
		return layoutError("the number of devices", *n.v, "a small number")
	}
	for i := range int(*n.v) {
		dev := *dl.At[uintptr](p + uintptr(i)*8)
		if err := l.checkDevice(dev); err != nil {
			return err
		}
		if err := f(dev); err != nil {
			return err
		}
	}
	return nil
}

// maxDevices is more than a machine has.
const maxDevices = 1 << 16

// Name is the kernel's name of the device: "mlx5_0".
func (d *Device) Name() string { return d.name }

// Path is the device's directory in sysfs, or where it would be.
func (d *Device) Path() string { return d.path }
