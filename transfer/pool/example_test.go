package pool_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/penstock-io/penstock/transfer/pool"
)

// A pool of TCP connections, each for one user at a time.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()

	ctx := context.Background()
	var d net.Dialer
	p, err := pool.New(pool.Options[net.Conn]{
		Dial:  func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", l.Addr().String()) },
		Close: func(c net.Conn) error { return c.Close() },
		Max:   4,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)

	for range 3 {
		lease, err := p.Get(ctx, 0)
		if err != nil {
			log.Fatal(err)
		}
		c := lease.Conn()
		if _, err := c.Write([]byte("echo")); err != nil {
			lease.Discard() // the pool must not hand it out again
			log.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil {
			lease.Discard()
			log.Fatal(err)
		}
		lease.Release()
	}
	s := p.Snapshot()
	fmt.Println(s.Served, "served by", s.Dials, "connection")
	// Output: 3 served by 1 connection
}
