package benchxdp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/dpdk"
	"github.com/penstock-io/penstock/mem"
)

// devices numbers those of DPDK, which wants a name of its own for each.
var devices atomic.Int64

// openDPDK is engine/dpdk with net_af_xdp, in builds with the tag dpdk. What it receives lies in
// memory of DPDK and is lent.
func openDPDK(ctx context.Context, h packetHost, s sideSpec) (_ *engineParts, err error) {
	p := &engineParts{blind: true, more: []func() error{lent}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	huge := "off"
	if s.huge {
		huge = "on"
	}
	var e engine.Engine = dpdk.New()
	for i, name := range s.interfaces {
		err := h.Do(func() error {
			// The last one only sends: a port starts when it has as many receive queues as were
			// announced.
			x, err := e.OpenPort(ctx, engine.PortSpec{RxQueues: max(1-i, 0), TxQueues: 1,
				Address: fmt.Sprintf("dpdk://net_af_xdp%d,iface=%s?descriptors=%d&huge=%s", devices.Add(1), name, depth,
					huge)})
			if err == nil {
				p.ports = append(p.ports, x)
			}
			return err
		})
		if err != nil {
			return p, fmt.Errorf("%s: %w", name, err)
		}
	}
	x, err := mem.NewPool(mem.PoolOptions{Name: "to send", SlotSize: max(2048, s.size), Slots: depth})
	if err != nil {
		return p, err
	}
	p.pools, p.fill = append(p.pools, x), depth
	if p.rx, err = p.ports[0].AddRxQueue(engine.RxSpec{Name: "rx", Depth: depth}); err != nil {
		return p, fmt.Errorf("receive queue: %w", err)
	}
	if p.tx, err = p.ports[len(p.ports)-1].AddTxQueue(engine.TxSpec{Name: "tx", Pools: p.pools,
		Depth: depth}); err != nil {
		return p, fmt.Errorf("transmit queue: %w", err)
	}
	return p, nil
}

// depth is that of net_af_xdp's rings, as testpmd has them.
const depth = 2048

// lent fails when memory of DPDK did not come back: it stays while a burst has a packet of it.
func lent() error {
	for _, l := range mem.LeakReport() {
		if l.What == "region" && strings.HasSuffix(l.Of, "(DPDK)") {
			return fmt.Errorf("bench: %d bytes of %s are not back", l.Bytes, l.Of)
		}
	}
	return nil
}
