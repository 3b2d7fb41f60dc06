package setup

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
)

// Pending are connections that a listener accepted and that have shown nothing yet, of which it
// keeps only so many. When there are more, the oldest connection of the source that has the most
// makes room: a flood from one source pushes out its own connections and no others. The zero value
// is empty and ready to use; its methods are called by one goroutine at a time.
type Pending[T comparable] struct {
	most    int            // 0: MaxPending(); tests have less
	sources map[string][]T // in the order of arrival, without empty ones
	of      map[T]string
}

// MaxPending is the number of connections that each listener of this process keeps pending: 1024,
// so that the hundreds of processes of a job, which one user begins on one machine at once, all get
// in; or fewer where the process can have few descriptors, so that three listeners take at most
// three quarters of what package budget does not give to peers.
var MaxPending = sync.OnceValue(func() int {
	files, err := sys.FileLimit()
	if err != nil {
		files = 1024
	}
	return maxPending(files)
})

func maxPending(files uint64) int { return int(min(max(files/16, 4), 1024)) }

// Source is where a connection comes from as far as an address tells: an IPv4 address, or all that
// one machine can choose from, which is the /64 of an IPv6 address, and 127.0.0.0/8.
func Source(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	switch {
	case a.Is4() && a.IsLoopback():
		bits = 8
	case a.Is6() && !a.IsLoopback():
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked().String()
}

// Add keeps a connection. If another one has to make room for it, Add returns that one, which is
// not kept any more, and true.
func (p *Pending[T]) Add(source string, c T) (out T, full bool) {
	if p.of == nil {
		p.sources, p.of = map[string][]T{}, map[T]string{}
	}
	most := p.most
	if most == 0 {
		most = MaxPending()
	}
	if full = len(p.of) >= most; full {
		greediest := source
		for s, list := range p.sources {
			if len(list) > len(p.sources[greediest]) {
				greediest = s
			}
		}
		out = p.sources[greediest][0]
		p.Remove(out)
	}
	p.sources[source] = append(p.sources[source], c)
	p.of[c] = source
	return out, full
}

// Remove forgets a connection. It returns false if the connection is not kept.
func (p *Pending[T]) Remove(c T) bool {
	source, ok := p.of[c]
	if !ok {
		return false
	}
	delete(p.of, c)
	list := p.sources[source]
	if len(list) == 1 {
		delete(p.sources, source)
		return true
	}
	i := slices.Index(list, c)
	p.sources[source] = slices.Delete(list, i, i+1)
	return true
}

// Len is the number of connections that are kept.
func (p *Pending[T]) Len() int { return len(p.of) }

// All lists them, in no order.
func (p *Pending[T]) All() []T { return slices.Collect(maps.Keys(p.of)) }
