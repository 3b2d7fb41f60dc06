package sim

import (
	"sync"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// sources has one burst.Source for each pool that any queue of the process uses, so that a receive
// queue knows packets of its own pool when it sees them.
var sources struct {
	sync.Mutex
	of map[*mem.Pool]*sourceOf
}

type sourceOf struct {
	src   *burst.Source
	bytes []byte
	users int
}

// acquireSource returns the Source of a pool and what the CPU sees of its memory.
func acquireSource(p *mem.Pool) (*burst.Source, []byte) {
	sources.Lock()
	defer sources.Unlock()
	s := sources.of[p]
	if s == nil {
		s = &sourceOf{src: burst.PoolSource(p), bytes: p.Region().All().Bytes()}
		if sources.of == nil {
			sources.of = map[*mem.Pool]*sourceOf{}
		}
		sources.of[p] = s
	}
	s.users++
	return s.src, s.bytes
}

func releaseSources(pools []*mem.Pool) {
	sources.Lock()
	defer sources.Unlock()
	for _, p := range pools {
		s := sources.of[p]
		if s.users--; s.users == 0 {
			delete(sources.of, p)
		}
	}
}
