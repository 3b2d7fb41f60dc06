package host

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// mostFile is how much of a file is read. The longest is the configuration space of a PCI
	// device or a list of processors.
	mostFile = 64 << 10
	// mostEntries is how many entries of a directory are looked at.
	mostEntries = 16384
)

// reader reads a tree, and notes what it could not read.
type reader struct {
	ctx     context.Context
	tree    fs.FS
	missing map[string]string // path to reason
}

// miss notes that a path could not be read, or says nothing that can be understood.
func (r *reader) miss(name string, err error) {
	r.missing["/"+name] = reason(err)
}

// reason is why, without the path.
func reason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it is not there"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return err.Error()
}

// raw is the content of a file, at most mostFile bytes.
func (r *reader) raw(name string) ([]byte, bool) {
	if err := r.ctx.Err(); err != nil {
		r.miss(name, err)
		return nil, false
	}
	b, err := readFile(r.tree, name)
	if err != nil {
		r.miss(name, err)
		return nil, false
	}
	return b, true
}

// readFile is the content of a file, at most mostFile bytes.
func readFile(tree fs.FS, name string) ([]byte, error) {
	if rec, ok := tree.(*Recording); ok {
		b, err := rec.ReadFile(name)
		return b[:min(len(b), mostFile)], err
	}
	f, err := tree.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, mostFile))
}

// text is the content of a small file without the blanks around it.
func (r *reader) text(name string) (string, bool) {
	b, ok := r.raw(name)
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "?")), ok
}

// word is text, empty where there is none.
func (r *reader) word(name string) string {
	s, _ := r.text(name)
	return s
}

// number is a file's number, or otherwise where it has none.
func (r *reader) number(name string, otherwise int) int {
	s, ok := r.text(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil || n > 1<<52 || n < -1<<52 {
		r.miss(name, badContent("a number", s))
		return otherwise
	}
	return int(n)
}

// processors is a file's list of processors (or nodes); nil and false where it has none.
func (r *reader) processors(name string) ([]int, bool) {
	s, ok := r.text(name)
	if !ok {
		return nil, false
	}
	l, err := ParseList(s)
	if err != nil {
		r.miss(name, err)
		return nil, false
	}
	return l, true
}

// list is the names in a directory, sorted.
func (r *reader) list(name string) []string {
	if err := r.ctx.Err(); err != nil {
		r.miss(name, err)
		return nil
	}
	entries, err := fs.ReadDir(r.tree, name)
	if err != nil {
		r.miss(name, err)
		return nil
	}
	var out []string
	for _, e := range entries[:min(len(entries), mostEntries)] {
		if plainName(e.Name()) {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out
}

// plainName reports whether a name can stand in a line of a recording. The kernel has no others
// where this package looks.
func plainName(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '{' || r == '}' || unicode.IsSpace(r) || !unicode.IsGraphic(r)
	})
}

// numbered is the numbers of a directory's entries of the form prefix and number, in order.
func (r *reader) numbered(dir, prefix string) (out []int) {
	for _, e := range r.list(dir) {
		if rest, ok := strings.CutPrefix(e, prefix); ok {
			if n, err := strconv.Atoi(rest); err == nil && n >= 0 && strconv.Itoa(n) == rest {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out
}

// link is the path to which a symbolic link leads, from the root of the tree.
func (r *reader) link(name string) (string, bool) {
	if err := r.ctx.Err(); err != nil {
		r.miss(name, err)
		return "", false
	}
	to, err := fs.ReadLink(r.tree, name)
	if err != nil {
		r.miss(name, err)
		return "", false
	}
	if strings.HasPrefix(to, "/") {
		to = strings.TrimLeft(path.Clean(to), "/")
	} else {
		to = path.Join(path.Dir(name), to)
	}
	if !fs.ValidPath(to) || to == "." || !plainName(to) {
		r.miss(name, badContent("a link inside the tree", to))
		return "", false
	}
	return to, true
}

// is reports whether a directory is there.
func (r *reader) is(name string) bool {
	_, err := fs.Stat(r.tree, name)
	return err == nil
}

func badContent(want, got string) error {
	if len(got) > 40 {
		got = got[:40] + "..."
	}
	return errors.New("expected " + want + ", it says " + strconv.Quote(got))
}

// sortByLength sorts the shortest first, and those of one length by the alphabet.
func sortByLength(names []string) {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
}
