// Putget puts bytes into, and gets bytes from, the memory of another program. One exports a region,
// the other puts into it and gets from it. As it is, both are in this process; as two programs:
//
//	go run ./examples/putget
//	go run ./examples/putget -serve tcp://127.0.0.1:7070
//	go run ./examples/putget -peer tcp://127.0.0.1:7070
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

const size = 1 << 20

func main() {
	listen := flag.String("serve", "", "export memory at this address until interrupted")
	peer := flag.String("peer", "", "put into the memory of the program at this address, and get it back")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *listen != "":
		err = serve(ctx, os.Stdout, *listen, func(addr string) { fmt.Println("at", addr) })
	case *peer != "":
		err = use(ctx, os.Stdout, *peer)
	default:
		err = both(ctx, os.Stdout)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "putget:", err)
		os.Exit(1)
	}
}

// serve exports a region under a name until ctx ends, and says what peers do with it.
func serve(ctx context.Context, out io.Writer, listen string, ready func(addr string)) (err error) {
	region, err := mem.Alloc(mem.Options{Name: "shared", Size: size})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	node, err := transfer.Open(ctx, transfer.Options{
		Name:   "server",
		Listen: []string{listen},
		// Processes of this user, on this machine alone: other machines need an identity (penstock
		// pair).
		Anonymous: identity.Read | identity.Write | identity.List,
		// A completed put is in place and checked when this is called.
		OnTransfer: func(in transfer.Incoming) {
			if in.Kind == path.Put {
				fmt.Fprintf(out, "server: %d bytes of %s: %s\n", in.Bytes, in.Peer.Name(), in.Msg)
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if _, err := node.Export(region.All(), transfer.ExportOptions{Name: "memory",
		Rights: path.Read | path.Write}); err != nil {
		return err
	}
	ready(node.Addrs()[0])
	<-ctx.Done()
	return ctx.Err()
}

// use puts into the memory of the program at an address, gets the bytes back, and compares.
func use(ctx context.Context, out io.Writer, addr string) (err error) {
	region, err := mem.Alloc(mem.Options{Name: "ours", Size: 2 * size})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	sent, err1 := region.Span(0, size)
	back, err2 := region.Span(size, size)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for i := range sent.Bytes() {
		sent.Bytes()[i] = byte(i * 7)
	}

	node, err := transfer.Open(ctx, transfer.Options{Name: "client", Anonymous: identity.All})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	peer, err := node.Dial(ctx, addr)
	if err != nil {
		return err
	}
	remote, err := peer.Lookup(ctx, "memory")
	if err != nil {
		return err
	}
	// A transfer is a future: the spans belong to it until Wait returns. The message arrives with
	// the bytes.
	put, err := peer.Put(ctx, []path.Copy{remote.At(0, sent)}, transfer.PutOptions{Msg: []byte("hello")})
	if err != nil {
		return err
	}
	if err := put.Wait(ctx); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, put.Explain()) // by which path, why, and what the others would have cost
	get, err := peer.Get(ctx, []path.Copy{remote.At(0, back)}, transfer.PutOptions{})
	if err != nil {
		return err
	}
	if err := get.Wait(ctx); err != nil {
		return err
	}
	if !bytes.Equal(sent.Bytes(), back.Bytes()) {
		return errors.New("other bytes came back")
	}
	fmt.Fprintf(out, "client: put %d bytes and got them back\n", size)
	return nil
}

// both runs the two in this process.
func both(ctx context.Context, out io.Writer) error {
	serving, stop := context.WithCancel(ctx)
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- serve(serving, io.Discard, "tcp://127.0.0.1:0", func(addr string) { at <- addr }) }()
	var err error
	select {
	case addr := <-at:
		err = use(ctx, out, addr)
	case err = <-ended:
		stop()
		return err
	}
	stop()
	if e := <-ended; !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return err
}
