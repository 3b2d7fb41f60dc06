package agent

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// lookFor is how long requests looks for the next request before it sleeps: to be woken takes as
// long as all else of a small transfer.
const lookFor = 30 * time.Microsecond

// requests reads a socket. It is in Go's poller and does not block.
type requests struct {
	raw interface {
		Read(func(fd uintptr) bool) error
	}
	v [1]sys.Iovec

	skip, misses int // reads that do not look, after so many looks in a row that found nothing
}

func (r *requests) Read(b []byte) (n int, err error) {
	r.v[0].Set(b)
	begun, look := time.Now(), r.skip == 0
	if !look {
		r.skip--
	}
	failed := r.raw.Read(func(fd uintptr) bool {
		for {
			k, e := sys.Recvv(int(fd), r.v[:])
			switch {
			case e == sys.EINTR || e == sys.EAGAIN && look && time.Since(begun) < lookFor:
				continue
			case e == sys.EAGAIN:
				if look { // where processors are busy it is in the way of others
					look, r.skip = false, 1<<r.misses
					r.misses = min(r.misses+1, 8)
				}
				return false
			case e != 0:
				err = fmt.Errorf("agent: recv: %w", e)
			case k == 0:
				err = io.EOF
			}
			if look {
				r.misses = 0
			}
			n = max(k, 0)
			if err != nil {
				n = 0
			}
			return true
		}
	})
	if failed != nil {
		return 0, failed
	}
	return n, err
}
