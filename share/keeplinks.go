package share

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// A share says by the service "share/links/1" which symbolic links it has and does not follow,
// those alone whose text leads nowhere but below the directory that is served; see unfitLink.
// Numbers are big-endian.
//
//	length u8 and name after which the answer begins, prefix of names -> more u8 (1: ask again, after the last name), then for each link, in the
//	order of the names: length u8 and name, length u16 and text
const (
	linksService = "share/links/1"

	maxLinkText = 4095 // bytes, as file systems have it
	// of a share, and that a client takes from one, as transfer.Peer.List takes names; so with
	// directories
	maxLinks     = 1 << 20
	maxLinkBytes = 256 << 20 // names and texts that a client takes

	// newLink is a link until it has its name: PathOf gives no path to it.
	newLink = ownPrefix + "link"
)

// link is a symbolic link of a share.
type link struct{ name, to string }

// entry is what a mirror records of a link.
func (l link) entry() Entry {
	sum := sha256.Sum256([]byte("penstock link tag 1\n" + l.to))
	return Entry{Name: l.name, Size: uint64(len(l.to)), Tag: Tag(sum[:16])}
}

// unfitLink says why a link cannot be made below any directory; "" if it can. A link goes up at its
// beginning only, and not out of the directory: its own directory is none that a link leads to, and
// behind a name there may be another link, which goes elsewhere.
func unfitLink(l link) string {
	if why := unfit(l.name); why != "" {
		return why
	}
	switch {
	case len(l.to) == 0 || len(l.to) > maxLinkText:
		return fmt.Sprintf("it has %d bytes, expected 1 to %d", len(l.to), maxLinkText)
	case !utf8.ValidString(l.to):
		return "it is not UTF-8"
	case l.to[0] == '/':
		return "its path is absolute"
	}
	up, down := strings.Count(l.name, "/"), false
	for c := range strings.SplitSeq(l.to, "/") {
		switch {
		case c == "", c == ".":
		case c == ".." && down:
			return "it goes up behind a name"
		case c == "..":
			if up--; up < 0 {
				return "it leads out of the directory that is served"
			}
		default:
			if why := danger(c); why != "" {
				return "its path is dangerous: " + why
			}
			down = true
		}
	}
	return ""
}

func parseLinks(b []byte) (after, prefix string, err error) {
	in := fieldsOf(b)
	after, prefix = in.text(), in.rest(0, MaxName)
	return after, prefix, in.err("link request")
}

// listLinks answers a call of linksService.
func (s *Server) listLinks(_ context.Context, _ *transfer.Peer, b []byte) ([]byte, error) {
	after, prefix, err := parseLinks(b)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	links := s.links // a scan makes another one
	s.mu.Unlock()
	links = links[sort.Search(len(links), func(i int) bool {
		return links[i].name > after && links[i].name >= prefix
	}):]
	links = links[:sort.Search(len(links), func(i int) bool { return !strings.HasPrefix(links[i].name, prefix) })]
	return linkPage(links, true), nil
}

// isLink notes, for the scan under way, the link base of dir at a path.
func (s *Server) isLink(ctx context.Context, dir *os.Root, base, p string) {
	to, err := dir.Readlink(base)
	if err != nil {
		s.failed(ctx, p, err)
		return
	}
	l := link{p, to}
	if why := unfitLink(l); why != "" {
		s.skip(p, "it is "+kind(os.ModeSymlink)+": "+why)
		return
	}
	s.mu.Lock()
	full := len(s.linking) >= maxLinks
	if !full {
		s.linking = append(s.linking, l)
	}
	s.mu.Unlock()
	if full {
		s.leftOut(p, fmt.Errorf("more than %d symbolic links", maxLinks), lackMore)
		return
	}
	s.skip(p, "it is "+kind(os.ModeSymlink))
}

func sortLinks(links []link) []link {
	slices.SortFunc(links, func(a, b link) int { return cmp.Compare(a.name, b.name) })
	return links
}

// linksOf are the links of the other side under a prefix.
func linksOf(ctx context.Context, c Conn, prefix string) ([]link, error) {
	links, err := c.allPages(ctx, linksService, "", prefix, true)
	if errors.Is(err, control.Unsupported) {
		return nil, fmt.Errorf("share: symbolic links: the other side is no share of this version, and lists none: %w",
			err)
	}
	if err != nil {
		return nil, fmt.Errorf("share: symbolic links: %w", err)
	}
	return links, nil
}

// planLinks decides which links are to be had: what no link can be here is left out.
func (m *mirror) planLinks(there map[string]bool) {
	for _, l := range m.offered {
		why := unfitLink(l)
		switch {
		case !m.o.Filter.Takes(l.name):
			m.sum.Excluded++
		case why != "":
			m.refused = append(m.refused, Skipped{l.name, why})
			continue
		default:
			m.links = append(m.links, l)
		}
		there[l.name] = true
	}
	m.progress.Files += len(m.links)
}

// leaveLinks makes the list of what is left out that of a mirror that keeps links: the other side
// leaves out each.
func (m *mirror) leaveLinks() {
	names := make(map[string]bool, len(m.offered))
	for _, l := range m.offered {
		names[l.name] = true
	}
	list, excluded := m.sum.LeftOut[:0], 0
	for _, s := range m.sum.LeftOut {
		switch {
		case names[s.Path]:
		case !m.o.Filter.Takes(s.Path):
			excluded++
		default:
			list = append(list, s)
		}
	}
	m.sum.LeftOutTotal = max(m.sum.LeftOutTotal-len(m.offered)-excluded, len(list)) + len(m.refused)
	m.sum.LeftOut = append(m.refused, list...)
}

// makeLinks brings links up to date: last, so that none leads to a file that is still to come.
func (m *mirror) makeLinks(ctx context.Context) {
	var items []*item
	var begun []Entry
	for _, l := range m.links {
		if ctx.Err() != nil {
			return
		}
		t, missing := m.assess(listed{Entry: l.entry(), to: l.to})
		if !missing {
			m.done(t.MirrorFile, true)
			continue
		}
		items, begun = append(items, &item{task: t}), append(begun, t.e.Entry)
	}
	if len(items) > 0 {
		b := &batches{m: m}
		b.place(items, m.begin(begun...))
	}
}
