package web

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/budget"
)

// writeTimeout is how long a client may take to read a page.
const writeTimeout = 10 * time.Second

// mostConns is how many connections a server keeps in a process that may have many descriptors.
const mostConns = 32

// conns are the connections of a server, of which it keeps only so many, whose descriptors are not
// given to peers (package budget). One more ends the oldest that has no request, or else the
// oldest: a scraper sends its request at once, and has its page long before it is the oldest.
type conns struct {
	most int
	own  *budget.Grant

	mu  sync.Mutex
	all []conn // in the order of arrival
}

type conn struct {
	c    net.Conn
	busy bool
}

func newConns() *conns {
	b := budget.Process()
	most := min(mostConns, max(int(b.Total()[budget.Descriptors]/16), 4))
	return &conns{most: most, own: b.Own(budget.Amounts{budget.Descriptors: uint64(most) + 1})}
}

// state is http.Server.ConnState. The server calls it with StateNew before it accepts the next
// connection.
func (x *conns) state(c net.Conn, s http.ConnState) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.all, func(k conn) bool { return k.c == c })
	switch s {
	case http.StateNew:
		if len(x.all) == x.most {
			k := max(slices.IndexFunc(x.all, func(k conn) bool { return !k.busy }), 0)
			end(x.all[k].c)
			x.all = slices.Delete(x.all, k, k+1)
		}
		x.all = append(x.all, conn{c: c})
	case http.StateActive, http.StateIdle:
		if i >= 0 {
			x.all[i].busy = s == http.StateActive
		}
	case http.StateClosed, http.StateHijacked:
		if i >= 0 {
			x.all = slices.Delete(x.all, i, i+1)
		}
	}
}

// end closes a connection. That of TLS would wait for a client that does not read.
func end(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	c.Close()
}
