package config_test

import (
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
)

// The specs are what engines and pools take: what a file says opens.
func TestSpecsOpen(t *testing.T) {
	c := mustLoad(t, `penstock:
  memory_regions:
    - {name: a, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: b, kind: host, num_bufs: 256, buf_size: 2KiB}
  interfaces:
    - name: loop
      engine: sim
      address: loopback
      rx:
        queues: [{memory_regions: [a]}, {memory_regions: [b]}]
        flows: [{match: {udp_dst: 5-6}, actions: [{type: queue, ids: [0, 1]}]}]
      tx: {queues: [{memory_regions: [a], rate: 1Gbps}]}
    - name: server
      socket: {mode: server, local: "udp://127.77.0.1:46231"}
      rx: {queues: [{memory_regions: [a]}]}
      tx: {queues: [{memory_regions: [b]}]}
    - name: client
      socket: {mode: client, remote: "udp://127.77.0.1:46231"}
      tx: {queues: [{memory_regions: [b]}]}
`)
	pools := map[string]*mem.Pool{}
	for i := range c.Regions {
		p, err := mem.NewPool(c.Regions[i].PoolOptions())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		pools[c.Regions[i].Name] = p
	}
	net, err := sim.NewNetwork(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	engines := map[config.Engine]engine.Engine{"sim": net, "socket": socket.New()}
	for i := range c.Interfaces {
		p := &c.Interfaces[i]
		port, err := engines[p.Engine].OpenPort(t.Context(), p.PortSpec())
		if err != nil {
			t.Fatal(p.Name, err)
		}
		defer port.Close()
		if p.Rx != nil {
			for k, q := range p.Rx.Queues {
				spec := p.RxSpec(k)
				for _, r := range q.Regions {
					spec.Pools = append(spec.Pools, pools[r])
				}
				if _, err := port.AddRxQueue(spec); err != nil {
					t.Fatal(p.Name, err)
				}
			}
			rules, err := p.Rx.Rules()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rules {
				if _, err := port.Rules().Apply(flow.Add(r)); err != nil {
					t.Fatal(p.Name, err)
				}
			}
		}
		for k, q := range p.Tx.Queues {
			spec := p.TxSpec(k)
			for _, r := range q.Regions {
				spec.Pools = append(spec.Pools, pools[r])
			}
			if _, err := port.AddTxQueue(spec); err != nil {
				t.Fatal(p.Name, err)
			}
		}
	}
}
