// Kvcache moves blocks of a KV cache from a prefill node to free slots of a decode node with one
// put. As it is, both are in this process; as two programs:
//
//	go run ./examples/kvcache
//	go run ./examples/kvcache -decode tcp://127.0.0.1:7070
//	go run ./examples/kvcache -prefill tcp://127.0.0.1:7070
package main

import (
	"context"
	"encoding/json"
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

// A block holds the keys and values of 16 tokens in all layers. Each node has a cache of so many.
const (
	blockSize = 64 << 10
	blocks    = 64
)

// request is the message that arrives with the blocks.
type request struct {
	ID     int
	Tokens int
	Blocks []uint64 // slots of the decode node, in the order of the tokens
}

func main() {
	decodeAt := flag.String("decode", "", "be the decode node at this address until interrupted")
	prefillTo := flag.String("prefill", "", "be the prefill node of the decode node at this address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *decodeAt != "":
		err = decode(ctx, os.Stdout, *decodeAt, 0, func(addr string) { fmt.Println("at", addr) })
	case *prefillTo != "":
		err = prefill(ctx, *prefillTo, request{ID: 1, Tokens: 60, Blocks: []uint64{3, 7, 1, 40}},
			[]uint64{10, 12, 11, 63})
	default:
		err = both(ctx, os.Stdout)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "kvcache:", err)
		os.Exit(1)
	}
}

// cache is a region of blocks.
func cache(name string) (*mem.Region, error) {
	return mem.Alloc(mem.Options{Name: name, Size: blocks * blockSize})
}

// decode exports its cache and takes requests with their blocks until ctx ends, or so many of them.
func decode(ctx context.Context, out io.Writer, listen string, requests int, ready func(addr string)) (err error) {
	region, err := cache("decode")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	arrived := make(chan request, 16)
	node, err := transfer.Open(ctx, transfer.Options{Name: "decode", Listen: []string{listen},
		Anonymous: identity.Write,
		OnTransfer: func(in transfer.Incoming) { // all blocks are in place and checked
			var r request
			if json.Unmarshal(in.Msg, &r) != nil {
				return // a peer sends what it likes
			}
			select {
			case arrived <- r:
			case <-ctx.Done():
			}
		}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if _, err := node.Export(region.All(), transfer.ExportOptions{Name: "kv", Rights: path.Write}); err != nil {
		return err
	}
	ready(node.Addrs()[0])
	for n := 0; requests == 0 || n < requests; n++ {
		select {
		case r := <-arrived:
			for i, b := range r.Blocks {
				if b >= blocks {
					return fmt.Errorf("request %d names block %d of %d", r.ID, b, blocks)
				}
				if got := region.All().Bytes()[b*blockSize]; got != content(r.ID, i) {
					return fmt.Errorf("request %d: block %d holds %d", r.ID, b, got)
				}
			}
			fmt.Fprintf(out, "decode: request %d, %d tokens in blocks %v\n", r.ID, r.Tokens, r.Blocks)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// content stands for what a model computes: each block of a request is filled with it.
func content(id, block int) byte { return byte(id*31 + block) }

// prefill computes a request's blocks in slots of its own and puts them into those of the decode
// node.
func prefill(ctx context.Context, addr string, r request, slots []uint64) (err error) {
	region, err := cache("prefill")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	node, err := transfer.Open(ctx, transfer.Options{Name: "prefill", Anonymous: identity.All})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	peer, err := node.Dial(ctx, addr)
	if err != nil {
		return err
	}
	kv, err := peer.Lookup(ctx, "kv")
	if err != nil {
		return err
	}
	var copies []path.Copy
	for i, slot := range slots {
		block, err := region.Span(slot*blockSize, blockSize)
		if err != nil {
			return err
		}
		for k := range block.Bytes() {
			block.Bytes()[k] = content(r.ID, i)
		}
		copies = append(copies, kv.At(r.Blocks[i]*blockSize, block))
	}
	msg, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// One transfer, one completion, one message: the decode node never sees some of the blocks.
	t, err := peer.Put(ctx, copies, transfer.PutOptions{Msg: msg})
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

// both runs the two in this process, for two requests.
func both(ctx context.Context, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- decode(ctx, out, "tcp://127.0.0.1:0", 2, func(addr string) { at <- addr })
	}()
	select {
	case err := <-ended:
		return err
	case addr := <-at:
		for _, x := range []struct {
			r     request
			slots []uint64
		}{{request{1, 60, []uint64{3, 7, 1, 40}}, []uint64{10, 12, 11, 63}},
			{request{2, 20, []uint64{0, 2}}, []uint64{5, 4}}} {
			if err := prefill(ctx, addr, x.r, x.slots); err != nil {
				stop()
				return errors.Join(err, <-ended)
			}
		}
	}
	return <-ended
}
