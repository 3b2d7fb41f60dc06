package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// answerList answers one page.
func (p *Peer) answerList(q *control.List) (control.Body, error) {
	p.beforeLookup("")
	// One at a time: peers that ask often cannot keep more than one core busy, nor have many pages
	// in the making.
	p.node.answering.Lock()
	defer p.node.answering.Unlock()
	body := p.maxBody()
	most := body / control.MinEntry
	if q.Max > 0 {
		most = int(min(uint64(most), uint64(q.Max)))
	}
	entries, _ := p.listed(q.Prefix, q.After, most, body, control.MinEntry)
	page := control.Page(entries, q.Max, body)
	return &page, nil
}

// answerNames answers one page.
func (p *Peer) answerNames(q *control.Names) (control.Body, error) {
	p.beforeLookup("")
	// One at a time: peers that ask often cannot keep more than one core busy.
	p.node.answering.Lock()
	defer p.node.answering.Unlock()
	const most = control.MaxStatus / control.MinNamed
	entries, more := p.listed(q.Prefix, q.After, most, control.MaxStatus, control.MinNamed)
	for n, body := len(entries), p.maxBody(); ; n /= 2 {
		page, err := control.NewNamesPage(entries[:n], more || n < len(entries), body)
		if !errors.Is(err, control.ErrTooLarge) || n <= 1 {
			return page, err
		}
	}
}

// listed are the entries of one page, and one more if that is above most, of least bytes each
// beside its name: within room bytes, or one more. more says that there are others. The node's
// mutex is held only while the exports of the page are picked.
func (p *Peer) listed(prefix, after string, most, room, least int) (entries []control.Entry, more bool) {
	n := p.node
	var picked []*Export
	n.mu.Lock()
	n.sorted.From(prefix, after, func(x *Export) bool {
		if !x.visible(p) {
			return true
		}
		if len(picked) > most || room <= 0 {
			more = true
			return false
		}
		room -= least - 1 + len(x.name) // at least
		picked = append(picked, x)
		return true
	})
	n.mu.Unlock()
	entries = make([]control.Entry, len(picked))
	for i, x := range picked {
		entries[i] = x.entryFor(p)
	}
	return entries, more
}

// maxListed bounds the names of one List: a peer could go on for ever.
const maxListed = 1 << 20

// List asks the peer for its named exports whose names begin with prefix, in the order of their
// names. More than a million of them are an error, which matches path.ErrTooLarge: ask for narrower
// prefixes.
func (p *Peer) List(ctx context.Context, prefix string) ([]*Remote, error) {
	return p.listing(prefix, p.known, func(after string) ([]control.Entry, bool, error) {
		return p.entries(ctx, prefix, after, 0)
	})
}

// entries asks for one page, of most names; 0: of as many as it has room for.
func (p *Peer) entries(ctx context.Context, prefix, after string, most uint32) ([]control.Entry, bool, error) {
	r, err := p.request(ctx, &control.List{Prefix: prefix, After: after, Max: most})
	if err != nil {
		return nil, false, err
	}
	page, err := control.Parse[control.Entries](r.Body)
	if err == nil && most > 0 && uint64(len(page.Entries)) > uint64(most) {
		err = fmt.Errorf("transfer: list of %s: %d names, expected at most %d: %w", p, len(page.Entries), most,
			path.ErrProtocol)
	}
	return page.Entries, page.More, err
}

// Names is List for who wants to know what there is, and moves none of it: the keys, generations
// and tags are zeros. It takes far fewer bytes, and so, where round trips are long, less time.
func (p *Peer) Names(ctx context.Context, prefix string) ([]*Remote, error) {
	out, err := p.listing(prefix, p.remoteOf, func(after string) ([]control.Entry, bool, error) {
		r, err := p.request(ctx, &control.Names{Prefix: prefix, After: after})
		if err != nil {
			return nil, false, err
		}
		page, err := control.Parse[control.NamesPage](r.Body)
		if err != nil {
			return nil, false, err
		}
		entries, err := page.Entries()
		return entries, page.More, err
	})
	if errors.Is(err, control.Unsupported) { // it has List alone
		return p.List(ctx, prefix)
	}
	return out, err
}

// ListPage is a part of List: the first of the exports whose names begin with prefix and come
// behind the given name, most of them or fewer. More says that there are others behind these.
func (p *Peer) ListPage(ctx context.Context, prefix, behind string, most uint32) (page []*Remote, more bool,
	err error) {
	entries, more, err := p.entries(ctx, prefix, behind, most)
	if err != nil {
		return nil, false, err
	}
	page, err = p.page(prefix, behind, entries, more, p.known)
	return page, more, err
}

// listing asks for page after page.
func (p *Peer) listing(prefix string, take func(*control.Entry) (*Remote, error),
	page func(after string) ([]control.Entry, bool, error)) (out []*Remote, err error) {
	after := ""
	for {
		entries, more, err := page(after)
		if err != nil {
			return nil, err
		}
		if len(out)+len(entries) > maxListed {
			return nil, fmt.Errorf("transfer: list of %s: more than %d names: %w", p, maxListed, path.ErrTooLarge)
		}
		these, err := p.page(prefix, after, entries, more, take)
		if err != nil {
			return nil, err
		}
		if out = append(out, these...); !more {
			return out, nil
		}
		after = entries[len(entries)-1].Name
	}
}

// page checks that the names of a page are what was asked for, in order.
func (p *Peer) page(prefix, after string, entries []control.Entry, more bool,
	take func(*control.Entry) (*Remote, error)) (out []*Remote, err error) {
	if more && len(entries) == 0 {
		return nil, fmt.Errorf("transfer: list of %s: an empty page that promises more: %w", p, path.ErrProtocol)
	}
	for i := range entries {
		e := &entries[i]
		if !strings.HasPrefix(e.Name, prefix) {
			return nil, fmt.Errorf("transfer: list of %s: %q for the prefix %q: %w", p, e.Name, prefix,
				path.ErrProtocol)
		}
		if e.Name <= after {
			return nil, fmt.Errorf("transfer: list of %s: %q after %q: %w", p, e.Name, after, path.ErrProtocol)
		}
		after = e.Name
		x, err := take(e)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}
