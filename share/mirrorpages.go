package share

import (
	"context"
	"iter"
	"math"
	"sync"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
)

// A mirror asks for all names at once, without tags, which is what is small, and decides by them
// what it fetches and deletes. It asks for the tags and keys of the names that it takes page by
// page while files of the pages before come.
const (
	pageNames  = batchFiles
	pagesAhead = 16 // that are asked for, or wait, at most
)

// listed is a name of a mirror.
type listed struct {
	Entry
	at     int              // in mirror.names
	to     string           // the text of a symbolic link; "": it is a file
	remote *transfer.Remote // nil: gone, or of another size, since it was listed; then Tag is zero, too
}

// pages are names of a mirror with their tags, in the order of the names.
type pages struct {
	m     *mirror
	ready chan chan page
}

type page struct {
	names []listed
	err   error // why nothing is known of them
}

// pages begins to ask for names, which are at these places of m.names. The caller ends ctx in any
// case, and waits for wg then.
func (m *mirror) pages(ctx context.Context, wg *sync.WaitGroup, todo []int) *pages {
	ps := &pages{m: m, ready: make(chan chan page, pagesAhead)}
	// TCP sends little at first, so the first page is asked for alone: it comes soonest then.
	may := make(chan struct{}, pagesAhead)
	may <- struct{}{}
	wg.Go(func() {
		defer close(ps.ready)
		for len(todo) > 0 {
			n := 1
			for ; n < len(todo) && todo[n] < todo[0]+pageNames; n++ {
			}
			these := todo[:n]
			todo = todo[n:]
			select {
			case <-may:
			case <-ctx.Done():
				return
			}
			answer := make(chan page, 1)
			select {
			case ps.ready <- answer:
			case <-ctx.Done():
				return
			}
			wg.Go(func() {
				answer <- m.page(ctx, these)
				for range 2 {
					select {
					case may <- struct{}{}:
					default:
					}
				}
			})
		}
	})
	return ps
}

// page asks for names.
func (m *mirror) page(ctx context.Context, todo []int) page {
	var p page
	for _, i := range todo {
		p.names = append(p.names, listed{Entry: m.names[i], at: i})
	}
	if p.err = m.gone(); p.err == nil {
		p.err = m.c.do(ctx, job.DoOptions{}, func(ctx context.Context, peer *transfer.Peer) error {
			return m.describe(ctx, peer, p.names)
		})
	}
	return p
}

// each gives out the pages, as they come. Names of which nothing is known have failed.
func (ps *pages) each(ctx context.Context) iter.Seq[[]listed] {
	return func(yield func([]listed) bool) {
		for answer := range ps.ready {
			p := <-answer
			if p.err == nil {
				if !yield(p.names) {
					return
				}
				continue
			}
			if ctx.Err() != nil {
				return
			}
			ps.m.lost(p.err)
			for _, e := range p.names {
				t := task{MirrorFile: MirrorFile{Name: e.Name, Size: e.Size}, e: e}
				t.Path, _ = PathOf(e.Name) // "": it has none
				ps.m.done(t.fail(p.err), true)
			}
		}
	}
}

// one gives out the names of the pages.
func (ps *pages) one(ctx context.Context) iter.Seq[listed] {
	return func(yield func(listed) bool) {
		for names := range ps.each(ctx) {
			for _, e := range names {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// batches gives out the names of the pages by batches.
func (ps *pages) batches(ctx context.Context) iter.Seq[[]listed] {
	return func(yield func([]listed) bool) {
		for names := range ps.each(ctx) {
			for batch := range cut(names, batchOf) {
				if !yield(batch) {
					return
				}
			}
		}
	}
}

// describe asks what names that follow each other stand for in a session.
func (m *mirror) describe(ctx context.Context, p *transfer.Peer, page []listed) error {
	for i := range page {
		page[i].remote, page[i].Tag = nil, Tag{}
	}
	behind := ""
	if i := page[0].at; i > 0 {
		behind = m.names[i-1].Name
	}
	most := page[len(page)-1].at - page[0].at + 1
	for rest := page; len(rest) > 0; {
		rs, more, err := p.ListPage(ctx, m.o.Prefix, behind, uint32(min(most, math.MaxUint32)))
		if err != nil {
			return err
		}
		for _, r := range rs {
			for len(rest) > 0 && rest[0].Name < r.Name { // it is gone
				rest = rest[1:]
			}
			if len(rest) == 0 {
				break
			}
			if e := &rest[0]; e.Name == r.Name {
				if r.Size() == e.Size {
					e.Tag, e.remote = r.Tag, r
				}
				rest = rest[1:]
			}
		}
		if !more {
			break
		}
		behind = rs[len(rs)-1].Name
	}
	return nil
}
