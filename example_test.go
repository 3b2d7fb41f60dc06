package penstock_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
)

// Two nodes, here in one process: one exports memory, the other puts bytes into it.
func Example() {
	ctx := context.Background()
	worker, _ := transfer.Open(ctx, transfer.Options{Listen: []string{"tcp://127.0.0.1:0"}})
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

// Datagrams received into memory that the program chose. The context ends it here; a real program goes on.
func Example_receive() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pool, _ := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 4096})
	defer pool.Close()
	port, err := socket.New().OpenPort(ctx, engine.PortSpec{Address: "udp://127.0.0.1:0"}) // or sim.Default, or afpacket.New()
	if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	queue, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		log.Fatal(err)
	}
	rx := engine.NewRx(queue, engine.Batching{Packets: 64, Timeout: time.Millisecond})

	// Somebody sends.
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
