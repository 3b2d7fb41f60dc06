//go:build dpdk

package cdpdk

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

// Port is a port of DPDK.
type Port uint16

// Attach finds the device that the arguments name (rte_dev_probe): a place on the PCI bus or the
// name of a virtual device, and options behind commas. It returns the device's ports.
func Attach(devargs string) ([]Port, error) {
	s := C.CString(devargs)
	defer C.free(unsafe.Pointer(s))
	var ids [32]C.uint16_t
	n := C.ps_attach(s, &ids[0], C.int(len(ids)))
	if err := failed("rte_dev_probe "+devargs, n); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, &Error{Call: "rte_dev_probe " + devargs, Errno: syscall.ENODEV}
	}
	var out []Port
	for _, id := range ids[:n] {
		out = append(out, Port(id))
	}
	return out, nil
}

// Close stops and closes the port: the driver frees the mbufs that it has. The device stays.
func (p Port) Close() error { return p.failed("rte_eth_dev_close", C.ps_close(p.c())) }

// Device is the device of a port.
type Device struct{ c *C.struct_rte_device }

// Device is the port's.
func (p Port) Device() Device { return Device{C.ps_device(p.c())} }

// Remove removes the device. Its port is closed.
func (d Device) Remove() error {
	if d.c == nil {
		return nil
	}
	return failed("rte_dev_remove", C.ps_remove(d.c))
}

// MapDMA lets the device reach memory that was registered. A device without an IOMMU has nothing to
// be told.
func (d Device) MapDMA(base uintptr, size uint64) error {
	return failed("rte_dev_dma_map", C.ps_map(d.c, C.uintptr_t(base), C.size_t(size), 1))
}

// UnmapDMA ends what MapDMA began.
func (d Device) UnmapDMA(base uintptr, size uint64) error {
	return failed("rte_dev_dma_unmap", C.ps_map(d.c, C.uintptr_t(base), C.size_t(size), 0))
}

func (p Port) c() C.uint16_t { return C.uint16_t(p) }

func (p Port) failed(call string, r C.int) error {
	if r >= 0 {
		return nil
	}
	return failed(fmt.Sprintf("%s port %d", call, p), r)
}

// Info is what a driver says of its port.
type Info struct {
	Name, Driver, Bus                  string
	NUMA                               int
	MaxRxQueues, MaxTxQueues           int
	MinRxDesc, MaxRxDesc, RxDescAlign  int
	MinTxDesc, MaxTxDesc, TxDescAlign  int
	MinRxBuf, MaxRxPkt, MinMTU, MaxMTU int
	HashKeySize, RetaSize              int
	// segments that the device receives into pools of their own (buffer split), 0 for none
	Split                            int
	RxOffloads, TxOffloads           uint64 // of the port; those of queues are among them
	RxQueueOffloads, TxQueueOffloads uint64
	RSSTypes, DevCapa                uint64
	MAC                              [6]byte
	MTU                              int
}

// Info asks the driver.
func (p Port) Info() (Info, error) {
	var c C.struct_ps_info
	if err := p.failed("rte_eth_dev_info_get", C.ps_info(p.c(), &c)); err != nil {
		return Info{}, err
	}
	i := Info{
		Name: C.GoString(&c.name[0]), Driver: C.GoString(&c.driver[0]), Bus: C.GoString(&c.bus[0]), NUMA: int(c.numa),
		MaxRxQueues: int(c.max_rx), MaxTxQueues: int(c.max_tx),
		MinRxDesc: int(c.min_rx_desc), MaxRxDesc: int(c.max_rx_desc), RxDescAlign: int(c.rx_align),
		MinTxDesc: int(c.min_tx_desc), MaxTxDesc: int(c.max_tx_desc), TxDescAlign: int(c.tx_align),
		MinRxBuf: int(c.min_rx_buf), MaxRxPkt: int(c.max_rx_pkt), MinMTU: int(c.min_mtu), MaxMTU: int(c.max_mtu),
		HashKeySize: int(c.hash_key), RetaSize: int(c.reta), Split: int(c.split),
		RxOffloads: uint64(c.rx_offloads), TxOffloads: uint64(c.tx_offloads),
		RxQueueOffloads: uint64(c.rx_queue_offloads), TxQueueOffloads: uint64(c.tx_queue_offloads),
		RSSTypes: uint64(c.rss_types), DevCapa: uint64(c.capa), MTU: int(c.mtu),
	}
	for k := range i.MAC {
		i.MAC[k] = byte(c.mac[k])
	}
	return i, nil
}

// Config is what a port is configured with while it is stopped.
type Config struct {
	Rx, Tx                 int // queues
	MTU                    int // 0 leaves the driver's
	RxOffloads, TxOffloads uint64
	RSSTypes               uint64 // 0: no RSS
	RSSKey                 []byte // nil: the driver's
}

// Configure sets the number of queues and what all of them have.
func (p Port) Configure(c Config) error {
	x := C.struct_ps_conf{rx: C.uint32_t(c.Rx), tx: C.uint32_t(c.Tx), mtu: C.uint32_t(c.MTU),
		rx_offloads: C.uint64_t(c.RxOffloads), tx_offloads: C.uint64_t(c.TxOffloads), rss_types: C.uint64_t(c.RSSTypes)}
	if len(c.RSSKey) > len(x.key) {
		return &Error{Call: "rte_eth_dev_configure: a key of RSS this long", Errno: syscall.EINVAL}
	}
	for i, b := range c.RSSKey {
		x.key[i] = C.uint8_t(b)
	}
	x.key_len = C.uint32_t(len(c.RSSKey))
	return p.failed("rte_eth_dev_configure", C.ps_configure(p.c(), &x))
}

// SetupRx sets up a receive queue with a pool. With another one for headers the first at bytes of
// each packet go there, and the rest into pool.
func (p Port) SetupRx(queue, depth int, pool, headers *Pool, at int, offloads uint64) error {
	var head *C.struct_ps_pool
	if headers != nil {
		head = headers.c
	}
	return p.failed("rte_eth_rx_queue_setup", C.ps_rx_setup(p.c(), C.uint16_t(queue), C.uint16_t(depth), pool.c, head,
		C.uint16_t(at), C.uint64_t(offloads)))
}

// SetupTx sets up a transmit queue.
func (p Port) SetupTx(queue, depth int, offloads uint64) error {
	return p.failed("rte_eth_tx_queue_setup", C.ps_tx_setup(p.c(), C.uint16_t(queue), C.uint16_t(depth),
		C.uint64_t(offloads)))
}

// Start has the port receive and send.
func (p Port) Start() error { return p.failed("rte_eth_dev_start", C.ps_start(p.c())) }

// Stop ends that: the driver frees the mbufs that it has.
func (p Port) Stop() error { return p.failed("rte_eth_dev_stop", C.ps_stop(p.c())) }

// RunRx starts or stops one receive queue of a running port. A driver frees the mbufs of a queue
// that stops.
func (p Port) RunRx(queue int, on bool) error {
	return p.failed("rte_eth_dev_rx_queue_start or stop", C.ps_rx_queue(p.c(), C.uint16_t(queue), boolean(on)))
}

// RunTx does the same for a transmit queue.
func (p Port) RunTx(queue int, on bool) error {
	return p.failed("rte_eth_dev_tx_queue_start or stop", C.ps_tx_queue(p.c(), C.uint16_t(queue), boolean(on)))
}

// LimitRate has the device send by a queue at that many megabits per second at most.
func (p Port) LimitRate(queue, mbps int) error {
	return p.failed("rte_eth_set_queue_rate_limit", C.ps_rate(p.c(), C.uint16_t(queue), C.uint32_t(mbps)))
}

// Clock reads the device's clock, in ticks of a length that DPDK does not say.
func (p Port) Clock() (ticks uint64, err error) {
	var n C.uint64_t
	err = p.failed("rte_eth_read_clock", C.ps_clock(p.c(), &n))
	return uint64(n), err
}

// Removed reports whether the device was unplugged, as far as the driver says.
func (p Port) Removed() bool { return C.ps_removed(p.c()) > 0 }

// RegisterTimes has all mbufs carry times, for Desc.Time and Seg.Time.
func RegisterTimes() error { return failed("rte_mbuf_dyn_timestamp_register", C.ps_times_register()) }

// Promiscuous has the port take frames for other MAC addresses.
func (p Port) Promiscuous(on bool) error {
	return p.failed("rte_eth_promiscuous_enable", C.ps_promiscuous(p.c(), boolean(on)))
}

func boolean(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// SetMTU sets the largest packet, L3 and up.
func (p Port) SetMTU(mtu int) error {
	return p.failed("rte_eth_dev_set_mtu", C.ps_set_mtu(p.c(), C.uint16_t(mtu)))
}

// Link is whether the link is up, and its speed in bits per second, 0 where unknown.
func (p Port) Link() (up bool, speed uint64, err error) {
	var mbps C.uint32_t
	r := C.ps_link(p.c(), &mbps)
	return r > 0, uint64(mbps) * 1e6, p.failed("rte_eth_link_get_nowait", r)
}

// Spread has RSS spread packets over these queues, by a table of so many entries.
func (p Port) Spread(size int, queues []uint16) error {
	return p.failed("rte_eth_dev_rss_reta_update",
		C.ps_reta(p.c(), C.uint16_t(size), (*C.uint16_t)(unsafe.Pointer(&queues[0])), C.int(len(queues))))
}

// Stats are the driver's counts since the device was attached.
type Stats struct{ Ipackets, Ibytes, Imissed, Ierrors, RxNoMbuf, Opackets, Obytes, Oerrors uint64 }

// Stats asks for the counts.
func (p Port) Stats() (Stats, error) {
	var c C.struct_rte_eth_stats
	err := p.failed("rte_eth_stats_get", C.ps_stats(p.c(), &c))
	return Stats{uint64(c.ipackets), uint64(c.ibytes), uint64(c.imissed), uint64(c.ierrors), uint64(c.rx_nombuf),
		uint64(c.opackets), uint64(c.obytes), uint64(c.oerrors)}, err
}

// XStats are the driver's own counts by name.
func (p Port) XStats() (names []string, values []uint64, err error) {
	n := C.ps_xstat_names(p.c(), nil, 0)
	if n <= 0 {
		return nil, nil, p.failed("rte_eth_xstats_get_names", n)
	}
	texts, counts := make([]C.struct_rte_eth_xstat_name, n), make([]uint64, n)
	if err := p.failed("rte_eth_xstats_get_names", C.ps_xstat_names(p.c(), &texts[0], n)); err != nil {
		return nil, nil, err
	}
	if err := p.failed("rte_eth_xstats_get", C.ps_xstats(p.c(), (*C.uint64_t)(unsafe.Pointer(&counts[0])),
		n)); err != nil {
		return nil, nil, err
	}
	for i := range texts {
		names = append(names, C.GoString(&texts[i].name[0]))
	}
	return names, counts, nil
}
