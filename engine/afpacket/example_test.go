package afpacket_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// Counts the eCPRI frames of VLAN 100 on eth0, where the kernel wrote them: a queue without pools
// copies nothing. All else stays with the kernel.
func Example() {
	ctx := context.Background()
	port, err := afpacket.New().OpenPort(ctx, engine.PortSpec{Address: "eth0", Isolated: true})
	if err != nil {
		log.Fatal(err) // without CAP_NET_RAW it says so
	}
	defer port.Close()
	rule, err := flow.ParseRule("vlan 100 ecpri type 0 -> queue 0")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := port.Rules().Apply(flow.Add(rule)); err != nil {
		log.Fatal(err)
	}
	q, err := port.AddRxQueue(engine.RxSpec{})
	if err != nil {
		log.Fatal(err)
	}
	rx, b := engine.NewRx(q, engine.Batching{}), burst.New(64)
	for n := 0; rx.Recv(ctx, b) == nil; {
		n += b.Len()
		b.Release()
		fmt.Println(n, "frames")
	}
}
