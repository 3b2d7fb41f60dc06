package sim_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// must ends an example that goes wrong.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// sendDatagrams sends one UDP datagram for each text from a queue: the first from source port 1,
// the next from 2, and so on.
func sendDatagrams(tx engine.TxQueue, texts ...string) {
	f := packet.UDPFrame{
		SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1}, DstMAC: packet.MAC{2, 0, 0, 0, 0, 2},
		Dst: netip.MustParseAddrPort("10.0.0.2:5000"),
	}
	b := burst.New(len(texts))
	must(tx.Alloc(b, len(texts), 1500))
	for i, text := range texts {
		f.Src = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1))
		frame := b.Bytes(i, 0)
		n := f.HeaderLen() + copy(frame[f.HeaderLen():], text)
		must(f.Fill(frame[:n], len(text)))
		b.SetLen(i, 0, n)
	}
	if err := tx.Send(b); err != nil {
		log.Fatal(err)
	}
}

// Two ports on the default network, without privileges: what one sends the other receives.
func Example() {
	ctx := context.Background()
	pool := must(mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 1024}))
	defer pool.Close()

	a := must(sim.Default.OpenPort(ctx, engine.PortSpec{Address: "sim://a"}))
	defer a.Close()
	tx := must(a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}}))

	b := must(sim.Default.OpenPort(ctx, engine.PortSpec{Address: "sim://b"}))
	defer b.Close()
	q := must(b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}}))

	sendDatagrams(tx, "one", "two", "three")

	rx := engine.NewRx(q, engine.Batching{Packets: 3, Timeout: time.Second})
	in := burst.New(64)
	if err := rx.Recv(ctx, in); err != nil {
		log.Fatal(err)
	}
	fmt.Println("packets:", in.Len(), "bytes:", in.TotalLen())
	in.Release()

	var s engine.RxStats
	q.Stats(&s)
	fmt.Println("counted:", s.Packets, "copied:", s.Copied, "dropped:", s.Drops.Total())
	// Output:
	// packets: 3 bytes: 137
	// counted: 3 copied: 0 dropped: 0
}

// Headers and payload in memory of their own: the payload could lie on an accelerator.
func Example_headerDataSplit() {
	ctx := context.Background()
	frames := must(mem.NewPool(mem.PoolOptions{Name: "frames", SlotSize: 2048, Slots: 64}))
	defer frames.Close()
	headers := must(mem.NewPool(mem.PoolOptions{Name: "headers", SlotSize: 128, Slots: 64}))
	defer headers.Close()
	payload := must(mem.NewPool(mem.PoolOptions{Name: "payload", SlotSize: 2048, Slots: 64}))
	defer payload.Close()

	port := must(sim.Default.OpenPort(ctx, engine.PortSpec{Address: "sim://split?loop"}))
	defer port.Close()
	tx := must(port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{frames}}))
	rx := must(port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{headers, payload}}))

	sendDatagrams(tx, "samples", "more samples")

	in := burst.NewSegmented(64, 128)
	must(rx.TryRecv(in))
	for i := range in.Len() {
		fmt.Printf("%v of %d bytes, %v %q\n", in.Role(i, 0), len(in.Bytes(i, 0)), in.Role(i, 1), in.Bytes(i, 1))
	}
	in.Release()
	// Output:
	// header of 42 bytes, payload "samples"
	// header of 42 bytes, payload "more samples"
}

// An echo: what was received is changed where it lies and forwarded without a copy.
func Example_echo() {
	ctx := context.Background()
	pool := must(mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 64}))
	defer pool.Close()

	net := must(sim.NewNetwork(sim.Options{}))
	defer net.Close()
	must(net.Link("client", "server"))
	open := func(name string) (engine.TxQueue, engine.RxQueue) {
		p := must(net.OpenPort(ctx, engine.PortSpec{Address: name}))
		return must(p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})),
			must(p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}}))
	}
	tx, rx := open("client")
	serverTx, serverRx := open("server")

	sendDatagrams(tx, "hello", "echo")

	b := burst.New(64)
	must(serverRx.TryRecv(b))
	for i := range b.Len() {
		eth := b.Bytes(i, 0)
		var mac [6]byte
		copy(mac[:], eth[0:6])
		copy(eth[0:6], eth[6:12]) // back to where it came from
		copy(eth[6:12], mac[:])
	}
	must(serverTx.Forward(b))
	if err := serverTx.Send(b); err != nil {
		log.Fatal(err)
	}

	must(rx.TryRecv(b))
	for i := range b.Len() {
		fmt.Printf("to %v: %s\n", packet.MAC(b.Bytes(i, 0)[:6]), b.Bytes(i, 0)[42:])
	}
	b.Release()
	fmt.Println("slots in use:", pool.Stats().InUse)
	// Output:
	// to 02:00:00:00:00:01: hello
	// to 02:00:00:00:00:01: echo
	// slots in use: 0
}

// Fan-out: a rule spreads flows over four queues by the Toeplitz hash, each flow to one queue.
func Example_fanOut() {
	ctx := context.Background()
	pool := must(mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 256}))
	defer pool.Close()

	port := must(sim.Default.OpenPort(ctx, engine.PortSpec{Address: "sim://fan?loop", Isolated: true}))
	defer port.Close()
	tx := must(port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}}))
	var queues []engine.RxQueue
	for id := range 4 {
		queues = append(queues, must(port.AddRxQueue(engine.RxSpec{ID: engine.Queue(id), Pools: []*mem.Pool{pool}})))
	}
	must(port.Rules().Apply(flow.Add(must(flow.ParseRule("name video udp dst 5000 -> rss 0-3")))))

	sendDatagrams(tx, make([]string, 64)...) // 64 flows of one packet

	in := burst.New(64)
	total := 0
	for _, q := range queues {
		n := must(q.TryRecv(in))
		total += n
		fmt.Printf("queue %d: %d packets by rule %d\n", q.ID(), n, in.Flow(0))
		in.Release()
	}
	fmt.Println("together:", total)
	// Output:
	// queue 0: 16 packets by rule 1
	// queue 1: 15 packets by rule 1
	// queue 2: 17 packets by rule 1
	// queue 3: 16 packets by rule 1
	// together: 64
}

// A network with faults: the same seed gives the same faults, and every packet is accounted for.
func ExampleLink_SetFaults() {
	ctx := context.Background()
	pool := must(mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 256}))
	defer pool.Close()

	net := must(sim.NewNetwork(sim.Options{Seed: 7}))
	defer net.Close()
	cable := must(net.Link("a", "b"))
	if err := cable.SetFaults(sim.Faults{Loss: 0.2, Duplicate: 0.1}); err != nil {
		log.Fatal(err)
	}
	a := must(net.OpenPort(ctx, engine.PortSpec{Address: "a"}))
	tx := must(a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}}))
	b := must(net.OpenPort(ctx, engine.PortSpec{Address: "b"}))
	rx := must(b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}}))

	sendDatagrams(tx, make([]string, 100)...)
	in := burst.New(256)
	must(rx.TryRecv(in))
	in.Release()

	ledger := net.Ledger()
	fmt.Printf("sent %d + duplicated %d = received %d + lost %d\n", ledger.Sent, ledger.Made, ledger.Received,
		ledger.Drops[engine.DropInjected])
	fmt.Println("unexplained:", ledger.Err())
	// Output:
	// sent 100 + duplicated 7 = received 91 + lost 16
	// unexplained: <nil>
}
