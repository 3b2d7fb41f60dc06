package sim

import (
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// sources has one burst.Source for each pool that any queue of the process uses, so that a receive queue knows packets of its own
// pool when it sees them.
var sources struct {
	sync.Mutex
	of map[*mem.Pool]*sourceOf
}

type sourceOf struct {
	src   *burst.Source
	bytes []byte
	users int
}

// acquireSource returns the Source of a pool and what the CPU sees of its memory. The error is ErrUnsupported for memory that the CPU
// cannot reach.
func acquireSource(p *mem.Pool) (*burst.Source, []byte, error) {
	sources.Lock()
	defer sources.Unlock()
	s := sources.of[p]
	if s == nil {
		bytes := p.Region().All().Bytes()
		if bytes == nil {
			return nil, nil, fmt.Errorf("%w: sim: pool %q: the CPU cannot reach memory of kind %v: use Host or Huge", engine.ErrUnsupported, p.Name(),
				p.Region().Kind())
		}
		s = &sourceOf{src: burst.PoolSource(p), bytes: bytes}
		if sources.of == nil {
			sources.of = map[*mem.Pool]*sourceOf{}
		}
		sources.of[p] = s
	}
	s.users++
	return s.src, s.bytes, nil
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
