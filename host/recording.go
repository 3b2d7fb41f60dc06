package host

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrRecording is an error of a text that is no recording of a machine.
var ErrRecording = errors.New("host: no recording of a machine")

// recordingHead is the first line of a recording. The number is the version of the form.
const recordingHead = "penstock host recording 1"

const (
	mostRecording = 32 << 20 // bytes
	mostRecorded  = 1 << 18  // files
)

// Recording is a tree of what was read of a machine. Its text has one line for each file:
//
//	/path = text             a line, or "quoted as in Go"
//	/path <                  several, each with "| " before it in the lines that follow
//	/path -> target          a symbolic link
//	/path : 256 0=de10 34=40 bytes: how many, and at which place (in hexadecimal) which; the others are zero
//	/path ! reason           cannot be read
//	/path/                   a directory
//	# text                   for readers
//
// In recordings that people write, {0-3,8} in a path stands for as many lines; a list in the text
// behind it has as many numbers and counts along.
type Recording struct {
	entries map[string]entry
	dirs    map[string]map[string]bool
}

// entry is what is at a path: one of these.
type entry struct {
	data   []byte
	link   string
	err    string
	dir    bool
	binary bool
}

func newRecording() *Recording {
	return &Recording{entries: map[string]entry{}, dirs: map[string]map[string]bool{".": {}}}
}

// add enters a path with the directories above it.
func (r *Recording) add(name string, e entry) {
	if !e.dir {
		r.entries[name] = e
	} else if r.dirs[name] == nil {
		r.dirs[name] = map[string]bool{}
	}
	for name != "." {
		dir := path.Dir(name)
		if r.dirs[dir] == nil {
			r.dirs[dir] = map[string]bool{}
		}
		if r.dirs[dir][path.Base(name)] {
			return
		}
		r.dirs[dir][path.Base(name)] = true
		name = dir
	}
}

// Parse reads the text of a recording. The error wraps ErrRecording and names the line.
func Parse(from io.Reader) (*Recording, error) {
	r := newRecording()
	s := bufio.NewScanner(io.LimitReader(from, mostRecording+1))
	s.Buffer(nil, 1<<20)
	line, total := 0, 0
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: line %d: %s", ErrRecording, line, fmt.Sprintf(format, args...))
	}
	block := "" // the path whose lines come
	for s.Scan() {
		line++
		text := s.Text()
		if total += len(text) + 1; total > mostRecording {
			return nil, bad("longer than %d bytes", mostRecording)
		}
		if line == 1 {
			if text != recordingHead {
				return nil, bad("expected %q", recordingHead)
			}
			continue
		}
		if rest, ok := strings.CutPrefix(text, "|"); ok {
			if block == "" {
				return nil, bad("a line of a file without a path before it")
			}
			e := r.entries[block]
			e.data = append(append(e.data, strings.TrimPrefix(rest, " ")...), '\n')
			r.entries[block] = e
			continue
		}
		block = ""
		if text = strings.TrimSpace(text); text == "" || text[0] == '#' {
			continue
		}
		name, op, value := split(text)
		if op == "" {
			return nil, bad("expected \"/path = text\", or another form; it is %q", brief(text))
		}
		expanded, err := expand(name, value)
		if err != nil {
			return nil, bad("%v", err)
		}
		for _, x := range expanded {
			name, ok := strings.CutPrefix(x[0], "/")
			if !ok || !fs.ValidPath(name) || name == "." || !plainName(name) {
				return nil, bad("%q is no path from the root without blanks, . and .. in it", brief(x[0]))
			}
			e, err := parseEntry(op, x[1])
			if err != nil {
				return nil, bad("%v", err)
			}
			if op == "<" {
				block = name
			}
			if len(r.entries)+len(r.dirs) >= mostRecorded {
				return nil, bad("more than %d files", mostRecorded)
			}
			if _, twice := r.entries[name]; twice && !e.dir {
				return nil, bad("%s is there twice", brief(x[0]))
			}
			r.add(name, e)
		}
	}
	if err := s.Err(); err != nil {
		return nil, bad("%v", err)
	}
	if line == 0 {
		return nil, bad("it is empty")
	}
	return r, nil
}

// split takes a line apart at its first operator.
func split(text string) (name, op, value string) {
	for i, w := range text {
		if w != ' ' {
			continue
		}
		op, value, _ = strings.Cut(text[i+1:], " ")
		switch op {
		case "=", "->", ":", "!", "<":
			return text[:i], op, value
		}
	}
	if dir, ok := strings.CutSuffix(text, "/"); ok {
		return dir, "/", ""
	}
	return "", "", ""
}

func parseEntry(op, value string) (e entry, err error) {
	switch op {
	case "/":
		e.dir = true
	case "=":
		if strings.HasPrefix(value, `"`) {
			if value, err = strconv.Unquote(value); err != nil {
				return e, badContent("a text quoted as in Go", value)
			}
			e.data = []byte(value)
			break
		}
		e.data = []byte(value + "\n")
	case "->":
		e.link = value
		if value == "" {
			return e, errors.New("a link to nowhere")
		}
	case "!":
		e.err = value
		if value == "" {
			return e, errors.New("no reason behind the exclamation mark")
		}
	case ":":
		e.data, err = parseBytes(value)
		e.binary = true
	}
	return e, err
}

func parseBytes(s string) ([]byte, error) {
	w := strings.Fields(s)
	if len(w) == 0 {
		return nil, errors.New("expected how many bytes")
	}
	n, err := strconv.Atoi(w[0])
	if err != nil || n < 0 || n > mostFile {
		return nil, badContent(fmt.Sprintf("how many bytes, up to %d", mostFile), w[0])
	}
	out := make([]byte, n)
	for _, x := range w[1:] {
		place, text, _ := strings.Cut(x, "=")
		at, err1 := strconv.ParseUint(place, 16, 31)
		b, err2 := hex.DecodeString(text)
		if err1 != nil || err2 != nil || int(at)+len(b) > n {
			return nil, badContent(fmt.Sprintf("a place and bytes inside of %d", n), x)
		}
		copy(out[at:], b)
	}
	return out, nil
}

var braces = regexp.MustCompile(`\{[0-9]+[0-9,-]*\}`)

// expand makes as many lines of one as its lists in braces have numbers.
func expand(name, value string) ([][2]string, error) {
	if !strings.Contains(name, "{") {
		return [][2]string{{name, value}}, nil
	}
	var lists [][]int
	n := -1
	for _, b := range append(braces.FindAllString(name, -1), braces.FindAllString(value, -1)...) {
		var l []int
		for part := range strings.SplitSeq(b[1:len(b)-1], ",") { // in the order in which they are written
			from, to, isRange := strings.Cut(part, "-")
			lo, err := strconv.ParseUint(from, 10, 31)
			hi := lo
			if err == nil && isRange {
				hi, err = strconv.ParseUint(to, 10, 31)
			}
			if err != nil || hi < lo || hi-lo >= mostCPU || len(l) >= mostCPU {
				return nil, badContent("a list of numbers in braces", b)
			}
			for ; lo <= hi; lo++ {
				l = append(l, int(lo))
			}
		}
		if n >= 0 && len(l) != n {
			return nil, fmt.Errorf("%s has %d numbers, and the list before it %d", b, len(l), n)
		}
		n = len(l)
		lists = append(lists, l)
	}
	if n < 0 {
		return nil, fmt.Errorf("%q: expected a list of numbers in braces", brief(name))
	}
	// What stands between the lists, once for all lines.
	between := [2][]string{braces.Split(name, -1), braces.Split(value, -1)}
	out := make([][2]string, n)
	var b strings.Builder
	for i := range n {
		k := 0
		for j, parts := range between {
			b.Reset()
			for x, p := range parts {
				if x > 0 {
					b.WriteString(strconv.Itoa(lists[k][i]))
					k++
				}
				b.WriteString(p)
			}
			out[i][j] = b.String()
		}
	}
	return out, nil
}

func brief(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// WriteTo writes the text, sorted by path.
func (r *Recording) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	b.WriteString(recordingHead +
		"\n# What \"penstock doctor\" read of a machine; docs/doctor.md says what is in it and what is not.\n")
	names := make([]string, 0, len(r.entries))
	for n := range r.entries {
		names = append(names, n)
	}
	for d, children := range r.dirs {
		if len(children) == 0 && d != "." {
			names = append(names, d+"/")
		}
	}
	slices.Sort(names)
	for _, n := range names {
		e := r.entries[n]
		text := strings.TrimSuffix(string(e.data), "\n")
		switch {
		case strings.HasSuffix(n, "/"):
			fmt.Fprintf(&b, "/%s\n", n)
		case e.link != "":
			fmt.Fprintf(&b, "/%s -> %s\n", n, e.link)
		case e.err != "":
			fmt.Fprintf(&b, "/%s ! %s\n", n, e.err)
		case e.binary:
			fmt.Fprintf(&b, "/%s : %d%s\n", n, len(e.data), chunks(e.data))
		case plain(text) && text == strings.TrimSpace(text) && !strings.HasPrefix(text, `"`):
			b.WriteString(strings.TrimRight(fmt.Sprintf("/%s = %s", n, text), " ") + "\n")
		case !strings.HasSuffix(string(e.data), "\n") ||
			slices.ContainsFunc(strings.Split(text, "\n"), func(l string) bool {
				return !plain(l)
			}):
			fmt.Fprintf(&b, "/%s = %s\n", n, strconv.Quote(string(e.data)))
		default:
			fmt.Fprintf(&b, "/%s <\n| %s\n", n, strings.ReplaceAll(text, "\n", "\n| "))
		}
	}
	return b.WriteTo(w)
}

// plain reports whether a text can stand in a line as it is.
func plain(s string) bool {
	for _, c := range s {
		if c < ' ' || c == 0x7f || c == '\ufffd' || c == '\u2028' || c == '\u0085' {
			return false
		}
	}
	return true
}

// chunks are the bytes that are not zero, with their places.
func chunks(data []byte) string {
	var b strings.Builder
	for i := 0; i < len(data); i++ {
		if data[i] == 0 {
			continue
		}
		j := i
		for j < len(data) && (data[j] != 0 || j+1 < len(data) && data[j+1] != 0) {
			j++
		}
		fmt.Fprintf(&b, " %x=%x", i, data[i:j])
		i = j
	}
	return b.String()
}

// lookup is the entry of a name, or the error that reading it gives.
func (r *Recording) lookup(op, name string) (e entry, dir bool, err error) {
	if !fs.ValidPath(name) {
		return e, false, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	e, ok := r.entries[name]
	_, dir = r.dirs[name]
	switch {
	case !ok && !dir:
		err = fs.ErrNotExist
	case !ok:
	case e.err == reason(fs.ErrPermission):
		err = fs.ErrPermission
	case e.err == reason(fs.ErrNotExist):
		err = fs.ErrNotExist
	case e.err != "":
		err = errors.New(e.err)
	}
	if err != nil {
		err = &fs.PathError{Op: op, Path: name, Err: err}
	}
	return e, dir, err
}

var errNoFile = errors.New("no plain file")

// Open opens a file. Links are not followed: a recording has what was read under the names that it
// was read by.
func (r *Recording) Open(name string) (fs.File, error) {
	e, dir, err := r.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if dir || e.link != "" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errNoFile}
	}
	return &file{Reader: bytes.NewReader(e.data), name: path.Base(name), size: int64(len(e.data))}, nil
}

// ReadFile is the content of a file, a copy.
func (r *Recording) ReadFile(name string) ([]byte, error) {
	e, dir, err := r.lookup("open", name)
	if err == nil && (dir || e.link != "") {
		err = &fs.PathError{Op: "open", Path: name, Err: errNoFile}
	}
	if err != nil {
		return nil, err
	}
	return bytes.Clone(e.data), nil
}

// ReadDir lists a directory, sorted.
func (r *Recording) ReadDir(name string) ([]fs.DirEntry, error) {
	_, dir, err := r.lookup("readdir", name)
	if err == nil && !dir {
		err = &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	if err != nil {
		return nil, err
	}
	var out []fs.DirEntry
	for c := range r.dirs[name] {
		out = append(out, fs.FileInfoToDirEntry(r.info(path.Join(name, c))))
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}

// ReadLink is where a link leads.
func (r *Recording) ReadLink(name string) (string, error) {
	e, _, err := r.lookup("readlink", name)
	if err == nil && e.link == "" {
		err = &fs.PathError{Op: "readlink", Path: name, Err: errors.New("invalid argument")}
	}
	return e.link, err
}

// Stat is about the name itself, as Lstat.
func (r *Recording) Stat(name string) (fs.FileInfo, error) {
	if _, _, err := r.lookup("stat", name); err != nil {
		return nil, err
	}
	return r.info(name), nil
}

// Lstat is Stat.
func (r *Recording) Lstat(name string) (fs.FileInfo, error) { return r.Stat(name) }

func (r *Recording) info(name string) fs.FileInfo {
	e := r.entries[name]
	f := &file{name: path.Base(name), size: int64(len(e.data)), mode: 0o444}
	if _, dir := r.dirs[name]; dir {
		f.mode = fs.ModeDir | 0o555
	} else if e.link != "" {
		f.mode = fs.ModeSymlink | 0o777
	}
	return f
}

// file is a file in memory, and what there is to say of it.
type file struct {
	*bytes.Reader
	name string
	size int64
	mode fs.FileMode
}

func (f *file) Stat() (fs.FileInfo, error) { return f, nil }
func (f *file) Close() error               { return nil }
func (f *file) Name() string               { return f.name }
func (f *file) Size() int64                { return f.size }
func (f *file) Mode() fs.FileMode          { return f.mode }
func (f *file) ModTime() time.Time         { return time.Time{} }
func (f *file) IsDir() bool                { return f.mode.IsDir() }
func (f *file) Sys() any                   { return nil }
