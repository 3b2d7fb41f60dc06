package tcp

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
)

// Memory that is sent or received can be a mapped file, which somebody else may truncate at any time. Where the kernel touches
// it, that is EFAULT from a call; where this package does, to sum it up, copy or encrypt it, it is a SIGBUS that would end the
// process. The calls below make the end of the path of it, and everything that sends or receives goes by them. They cost some
// 20 ns each.

// sendGuarded is send.
func (p *Path) sendGuarded(idle bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.faulted()
	p.send(idle)
}

// receiveGuarded is receive.
func (p *Path) receiveGuarded(all bool) int {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.faulted()
	return p.receive(all)
}

// faulted is deferred: it takes the path down if the panic is a memory fault, and goes on panicking if it is anything else.
func (p *Path) faulted() {
	v := recover()
	if v == nil {
		return
	}
	if _, ok := v.(runtime.Error); !ok {
		panic(v)
	}
	if _, ok := v.(interface{ Addr() uintptr }); !ok {
		panic(v)
	}
	p.down(fmt.Errorf("tcp: %w: memory to send from or receive into is gone: was the file behind it truncated? %w", path.ErrDown, mem.ErrFault))
}
