package neigh_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/penstock-io/penstock/engine/neigh"
	"github.com/penstock-io/penstock/packet"
)

// A destination whose Ethernet address the kernel finds out.
func ExampleNewEndpoint() {
	k, err := neigh.OpenKernel()
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	resolve := func(ctx context.Context, a netip.Addr) (packet.MAC, error) {
		hop, err := k.Resolve(ctx, a, 0)
		return hop.MAC, err
	}
	e, err := neigh.NewEndpoint(context.Background(), neigh.EndpointSpec{
		Src: netip.MustParseAddrPort("10.0.0.1:4000"),
		Dst: netip.MustParseAddrPort("239.1.2.3:5000")}, resolve)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Spec().DstMAC, e.HeaderLen(), e.MaxPayload())
	// Output: 01:00:5e:01:02:03 42 1472
}
