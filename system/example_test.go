package system_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// Two nodes, here in one process: one exports memory, the other puts bytes into it.
func Example() {
	ctx := context.Background()
	worker, _ := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Listen: []string{"tcp://127.0.0.1:0"}})
	defer worker.Close()
	inbox, _ := mem.Alloc(mem.Options{Size: 1 << 20})
	defer inbox.Close()
	worker.Export(inbox.All(), transfer.ExportOptions{Name: "inbox", Rights: path.Write})

	node, _ := transfer.Open(ctx, transfer.Options{})
	defer node.Close()
	peer, err := node.Dial(ctx, worker.Addrs()[0])
	if err != nil {
		log.Fatal(err)
	}
	remote, err := peer.Lookup(ctx, "inbox")
	if err != nil {
		log.Fatal(err)
	}
	local, _ := mem.Alloc(mem.Options{Size: 1 << 20})
	defer local.Close()
	copy(local.All().Bytes(), "hello")
	put, err := peer.Put(ctx, []path.Copy{remote.At(0, local.All())}, transfer.PutOptions{})
	if err != nil {
		log.Fatal(err)
	}
	err = put.Wait(ctx) // the bytes are in the worker's memory, verified
	fmt.Println(put.Explain().Path, string(inbox.All().Bytes()[:5]), err)
	// Output: shm hello <nil>
}

// Datagrams received into memory that the program chose. The context ends it here; a real program
// goes on.
func Example_receive() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pool, _ := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 4096})
	defer pool.Close()
	// or sim.Default, or afpacket.New()
	port, err := socket.New().OpenPort(ctx, engine.PortSpec{Address: "udp://127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	queue, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		log.Fatal(err)
	}
	rx := engine.NewRx(queue, engine.Batching{Packets: 64, Timeout: time.Millisecond})

	// A client sends.
	conn, err := net.Dial("udp", strings.TrimPrefix(port.Info().Address, "udp://"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("hello"))

	b := burst.New(64)
	for rx.Recv(ctx, b) == nil {
		for i := range b.Len() {
			fmt.Printf("%s\n", b.Bytes(i, 0))
		}
		b.Release()
		cancel() // enough
	}
	// Output: hello
}

// A file says what is there: memory, a port, its queues and flows. The port is looped to itself, so
// what is sent comes back.
func ExampleOpen() {
	ctx := context.Background()
	text := []byte(`penstock:
  memory_regions: [{name: packets, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces:
    - name: loop
      engine: sim
      address: loopback
      rx: {queues: [{memory_regions: [packets]}]}
      tx: {queues: [{memory_regions: [packets]}]}
`)
	cfg, problems := config.Load("loop.yaml", text, config.Options{})
	if cfg == nil {
		log.Fatal(problems.Text(text)) // with excerpts, all of them at once
	}
	s, err := system.Open(ctx, cfg, system.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	tx, err := s.Tx("loop", 0)
	if err != nil {
		log.Fatal(err)
	}
	rx, err := s.Rx("loop", 0)
	if err != nil {
		log.Fatal(err)
	}
	b := burst.New(64)
	tx.Alloc(b, 1, 64)
	copy(b.Bytes(0, 0)[packet.EthernetLen:], "hello")
	tx.Send(b)
	if err := rx.Recv(ctx, b); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d packet: %s\n", b.Len(), b.Bytes(0, 0)[packet.EthernetLen:][:5])
	b.Release()
	// Output: 1 packet: hello
}

// Two Systems talk over UDP: a server on a port that the kernel chooses, and a client that knows
// it.
func ExampleSystem_Port() {
	ctx := context.Background()
	open := func(iface string) *system.System {
		cfg, problems := config.Load("udp.yaml",
			[]byte("penstock:\n  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]\n  "+
				"interfaces: ["+iface+"]\n"), config.Options{})
		if cfg == nil {
			log.Fatal(problems.Err())
		}
		s, err := system.Open(ctx, cfg, system.Options{})
		if err != nil {
			log.Fatal(err)
		}
		return s
	}
	server := open(`{name: server, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [m]}]}}`)
	defer server.Close()
	at := server.Port("server").Info().Address
	client := open(`{name: client, socket: {mode: client, remote: "` + at +
		`"}, tx: {queues: [{memory_regions: [m]}]}}`)
	defer client.Close()
	tx, err := client.Tx("client", 0)
	if err != nil {
		log.Fatal(err)
	}
	rx, err := server.Rx("server", 0)
	if err != nil {
		log.Fatal(err)
	}
	b := burst.New(8)
	tx.Alloc(b, 1, 5)
	copy(b.Bytes(0, 0), "hello")
	tx.Send(b)
	if err := rx.Recv(ctx, b); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b.Bytes(0, 0))
	b.Release()
	// Output: hello
}

// A node of a file, and what its plan says of it.
func ExampleMakePlan() {
	cfg, _ := config.Load("node.yaml", []byte("penstock: {transfers: {name: store, listen: [\"tcp://127.0.0.1:0\"]}}"),
		config.Options{})
	plan, err := system.MakePlan(cfg, system.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(plan.Text())
	s, err := system.Open(context.Background(), cfg, system.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s.Node().Name(), len(s.Node().Addrs()))
	// Output:
	// plan of node.yaml
	// node store
	//   tcp://127.0.0.1:0: for this machine
	//   paths shm, tcp, verbs
	// store 1
}
