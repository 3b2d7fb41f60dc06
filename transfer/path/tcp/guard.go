package tcp

import (
	"fmt"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// Memory that is sent or received can be a mapped file, which another process may truncate at any
// time. Where the kernel touches it, that is EFAULT from a call; where this package does, to sum it
// up, copy or encrypt it, it is a SIGBUS. The calls below make the end of the path of it, and
// everything that sends or receives goes by them.

// sendGuarded is send.
func (p *Path) sendGuarded(idle bool) {
	p.guarded(mem.Guard(func() { p.send(idle) }))
}

// receiveGuarded is receive; after a fault it received nothing.
func (p *Path) receiveGuarded(all bool) (n int) {
	p.guarded(mem.Guard(func() { n = p.receive(all) }))
	return n
}

// guarded takes the path down after a fault.
func (p *Path) guarded(err error) {
	if err != nil {
		p.down(fmt.Errorf("tcp: %w: memory to send from or receive into is gone: was the file behind it truncated? %w",
			path.ErrDown, err))
	}
}
