package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
)

// A fetch that goes on when the connection is lost, and says how far it is.
func ExampleLink_Fetch() {
	ctx := context.Background()
	weights, err := mem.Alloc(mem.Options{Name: "weights", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer weights.Close()
	copy(weights.All().Bytes(), bytes.Repeat([]byte("penstock"), 1<<17))
	server, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: "server",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	// The tag says that a server that is started anew has the same bytes.
	if _, err := server.Export(weights.All(), transfer.ExportOptions{Name: "weights", Tag: [16]byte{1}}); err != nil {
		log.Fatal(err)
	}

	node, err := transfer.Open(ctx, transfer.Options{Name: "worker"})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	dst, err := mem.Alloc(mem.Options{Name: "dst", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer dst.Close()
	link := node.Link(server.Addrs()[0], transfer.LinkOptions{})
	defer link.Close()
	var verified uint64
	job, err := link.Fetch(ctx, "weights", dst.All(), transfer.JobOptions{OnVerified: func(off uint64) {
		verified = off
	}})
	if err != nil {
		log.Fatal(err)
	}
	if err := job.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(verified, job.Progress(), bytes.Equal(dst.All().Bytes(), weights.All().Bytes()))
	// Output: 1048576 1 true
}
