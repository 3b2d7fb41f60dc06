package record

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/pcap"
)

// partial is the suffix of a file that is not whole.
const partial = ".partial"

// files are the files of a Recorder. Its methods are called by the writer.
type files struct {
	r    *Recorder
	name *naming

	f     file   // nil: it could not be opened
	path  string // without the suffix
	off   int64  // behind the last whole write
	began time.Time
	// Counts when the file began: the losses of the interface and of the recorder, and what did not
	// match the filter.
	dropped0, filtered0 uint64
	lost0               [NumLosses]uint64
	packets             uint64
	kind                *batchKind
	about               []about // of the batches
	broken              error   // a file that is not whole, or could not be removed: Stats.Err has it from then on
	// lost are packets of chunks that could not be written, since the last one that was.
	lost [NumLosses]uint64
}

func newFiles(r *Recorder) (*files, error) {
	if r.o.To != nil {
		w := &files{r: r}
		return w, w.open()
	}
	name, err := newNaming(r.o.Name, r.o.MaxBytes > 0 || r.o.MaxPackets > 0 || r.o.Every > 0)
	if err != nil {
		return nil, err
	}
	name.overwrite = r.o.Overwrite
	w := &files{r: r, name: name}
	if r.o.Ring.zero() {
		return w, w.open()
	}
	before := *name // the first file comes later: this only shows that there can be one
	_, f, err := name.create(time.Now())
	if *name = before; err == nil {
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	return w, err
}

// open begins a file.
func (w *files) open() error {
	w.began, w.dropped0, w.packets, w.off, w.about = time.Now(), w.r.o.dropped(), 0, 0, w.about[:0]
	if w.r.o.To != nil {
		w.f, w.path = stream{w.r}, w.r.o.Name
	} else if path, f, err := w.name.create(w.began); err == nil {
		w.f, w.path = f, path
	} else {
		return err
	}
	if w.r.o.Format.capture() {
		b := w.r.form.AppendHeader(nil, &w.r.o.Interface)
		if err := w.put(b); err != nil {
			f := w.f
			if w.f = nil; w.r.o.To != nil {
				return err
			}
			return errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.stats.File, w.lost0, w.filtered0 = w.path, w.r.stats.Lost, w.r.stats.Filtered
	return nil
}

// put writes behind the last whole write. What a failed write left there the next one overwrites.
func (w *files) put(b []byte) error {
	n, err := w.f.WriteAt(b, w.off)
	if err != nil {
		return err
	}
	w.off += int64(n)
	return nil
}

// write writes a chunk, or counts its packets as lost.
func (w *files) write(c *chunk) {
	w.r.mu.Lock()
	late := w.r.late
	w.r.mu.Unlock()
	if late {
		return
	}
	var err error
	if w.f == nil {
		err = w.open()
	}
	if c.starts {
		w.began, w.dropped0, w.lost0, w.filtered0 = c.at, c.dropped, c.lost, c.filtered
	}
	at := w.off
	if err == nil && c.packets > 0 {
		if err = w.chunk(c); err == nil {
			w.packets += uint64(c.packets)
		}
	}
	w.r.mu.Lock()
	w.r.queued -= uint64(c.packets)
	switch {
	case w.r.late:
	case err == nil:
		w.r.stats.Packets += uint64(c.packets)
		w.r.stats.Bytes += uint64(w.off - at)
		w.r.stats.Err = w.broken
	default:
		l := lossOf(err)
		w.lost[l] += uint64(c.packets)
		w.r.stats.Lost[l] += uint64(c.packets)
		w.r.stats.Taken -= uint64(c.packets)
		w.r.stats.Err = err
	}
	ended := w.r.ended
	w.r.mu.Unlock()
	if c.end {
		w.end()
		if ended || !w.r.o.Ring.zero() || w.r.limit > 0 {
			return // the next file begins with its first packet
		}
		if err := w.open(); err != nil {
			w.r.mu.Lock()
			w.r.stats.Err = err
			w.r.mu.Unlock()
		}
	}
}

// chunk writes the packets of a chunk. The first one carries what was lost before it.
func (w *files) chunk(c *chunk) error {
	switch {
	case w.r.o.Format.Batches():
		return w.rows(c)
	case w.lost == ([NumLosses]uint64{}) || w.r.o.Format == Raw:
		return w.put(c.b)
	}
	p := c.first
	describe(&p, &w.lost)
	head := w.r.form.AppendPacket(nil, &c.first)
	b := w.r.form.AppendPacket(nil, &p)
	b = append(b, c.b[len(head):len(head)+p.Captured]...)
	b = append(w.r.form.EndPacket(b, &p), c.b[c.firstEnd:]...)
	if err := w.put(b); err != nil {
		return err
	}
	w.lost = [NumLosses]uint64{}
	return nil
}

// end makes the file whole.
func (w *files) end() {
	if w.f == nil {
		return
	}
	f := w.f
	w.f = nil
	w.r.mu.Lock()
	late := w.r.late
	w.r.mu.Unlock()
	if late {
		_ = f.Close() // Close has said what is lost
		return
	}
	err := w.finish(f)
	if w.packets == 0 && w.r.o.Format.Batches() { // which has no header then
		if err = errors.Join(err, os.Remove(f.Name())); err != nil {
			w.failed(err)
		}
		return
	}
	if err == nil && w.name != nil {
		err = w.name.publish(f.Name(), w.path)
	}
	if err != nil {
		w.failed(fmt.Errorf("%s is not whole: %w", f.Name(), err))
		return
	}
	w.r.mu.Lock()
	w.r.stats.Files++
	w.r.stats.File = ""
	if w.r.o.Upload != nil {
		w.r.stats.Uploads.Waiting++
		select {
		case w.r.up.wake <- struct{}{}:
		default:
		}
	}
	w.r.mu.Unlock()
	if w.name != nil && (w.r.o.Keep > 0 || w.r.o.KeepFiles > 0) {
		waited, err := w.name.prune(w.r.o.Keep, w.r.o.KeepFiles, w.path, w.r.up.waits)
		if err != nil {
			w.failed(err)
		}
		w.r.mu.Lock()
		w.r.stats.Uploads.Removed += uint64(waited)
		w.r.mu.Unlock()
	}
}

// finish writes the statistics, and closes the file.
func (w *files) finish(f file) error {
	w.r.mu.Lock()
	lost, filtered := w.r.stats.Lost, w.r.stats.Filtered-w.filtered0
	w.r.mu.Unlock()
	s := pcap.Statistics{Start: w.began, End: time.Now(), Given: w.packets}
	for l := range lost {
		s.DroppedByOS += lost[l] - w.lost0[l]
	}
	s.Accepted = s.Given + s.DroppedByOS
	s.Dropped = w.r.o.dropped() - w.dropped0
	s.Received = s.Accepted + filtered + s.Dropped
	var err error
	switch {
	case w.r.o.Format == Safetensors && w.packets > 0:
		err = w.endRows(f, &s)
	case w.r.o.Format.capture():
		b := w.r.form.AppendStatistics(nil, &s)
		if _, err = f.WriteAt(b, w.off); err == nil {
			w.off += int64(len(b))
		}
	}
	return errors.Join(err, f.Truncate(w.off), f.Close())
}

func (w *files) failed(err error) {
	w.broken = err
	w.r.mu.Lock()
	w.r.stats.Err = err
	w.r.mu.Unlock()
}

func lossOf(err error) Loss {
	if sys.IsErrno(err, sys.ENOSPC) || sys.IsErrno(err, sys.EDQUOT) {
		return DiskFull
	}
	return DiskError
}

// naming makes the names of files.
type naming struct {
	dir, ext string
	parts    []func(time.Time) string // of the name before ext
	timed    bool                     // some of them depend on the time
	numbered bool
	number   int // of the last file
	// overwrite says that the first file of a fixed name may replace another one, and replaces that
	// the one that is being written does.
	overwrite, replaces bool
	like                *regexp.Regexp
}

// verbs are the verbs of a name: their layouts in package time, and what they become.
var verbs = map[byte]struct{ layout, like string }{'Y': {"2006", `\d{4}`}, 'm': {"01", `\d{2}`}, 'd': {"02", `\d{2}`},
	'H': {"15", `\d{2}`}, 'M': {"04", `\d{2}`}, 'S': {"05", `\d{2}`}, 'j': {"002", `\d{3}`}}

// verb is what a verb writes, and what that looks like; write is nil if there is no such verb.
func verb(c byte) (write func(time.Time) string, like string) {
	v := verbs[c]
	switch {
	case v.layout != "":
		return func(t time.Time) string { return t.Format(v.layout) }, v.like
	case c == 's':
		return func(t time.Time) string { return fmt.Sprint(t.Unix()) }, `\d+`
	case c == '%':
		return func(time.Time) string { return "%" }, "%"
	}
	return nil, ""
}

func newNaming(name string, rotated bool) (*naming, error) {
	if name == "" || strings.HasSuffix(name, "/") {
		return nil, fmt.Errorf("%q names no file", name)
	}
	n := &naming{dir: filepath.Dir(name), ext: filepath.Ext(name)}
	if strings.Contains(n.dir, "%") {
		return nil, fmt.Errorf("%s: expected a percent sign in the name of the file only, not in that of its directory",
			name)
	}
	stem := strings.TrimSuffix(filepath.Base(name), n.ext)
	if strings.Contains(n.ext, "%") { // a.%S
		stem, n.ext = stem+n.ext, ""
	}
	like := ""
	for {
		text, rest, found := strings.Cut(stem, "%")
		n.parts = append(n.parts, func(time.Time) string { return text })
		like += regexp.QuoteMeta(text)
		if !found {
			break
		}
		write, form := verb((rest + "\x00")[0])
		if write == nil {
			return nil, fmt.Errorf("%s: expected %%Y, %%m, %%d, %%H, %%M, %%S, %%j, %%s or %%%% behind a percent sign",
				name)
		}
		n.parts = append(n.parts, write)
		like += form
		n.timed = n.timed || rest[0] != '%'
		stem = rest[1:]
	}
	n.numbered = rotated && !n.timed
	var err error
	n.like, err = regexp.Compile("^" + like + `(?:-(\d{5,9}))?` + regexp.QuoteMeta(n.ext) + "(?:" +
		regexp.QuoteMeta(partial) + ")?$")
	if err != nil {
		return nil, fmt.Errorf("%q: expected a name in UTF-8: %w", name, err)
	}
	return n, n.each(func(name string, _ fs.FileInfo) {
		k := 0
		fmt.Sscan(n.like.FindStringSubmatch(name)[1], &k)
		n.number = max(n.number, k)
	})
}

// each calls f for each file that has such a name.
func (n *naming) each(f func(name string, info fs.FileInfo)) error {
	list, err := os.ReadDir(n.dir)
	for _, e := range list {
		if !e.Type().IsRegular() || !n.like.MatchString(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil { // else it is gone
			f(e.Name(), info)
		}
	}
	return err
}

// at is the name of a file that begins at t, with a number unless that is 0.
func (n *naming) at(t time.Time, number int) string {
	var s strings.Builder
	for _, write := range n.parts {
		s.WriteString(write(t))
	}
	if number > 0 {
		fmt.Fprintf(&s, "-%05d", number)
	}
	return filepath.Join(n.dir, s.String()+n.ext)
}

// create makes the file that begins at t. Behind the first one those of a fixed name have numbers.
func (n *naming) create(t time.Time) (path string, f *os.File, err error) {
	fixed, k := !n.timed && !n.numbered, 0
	n.replaces = fixed && n.overwrite
	if n.numbered {
		k = n.number + 1
	}
	for ; ; k++ {
		path = n.at(t, k)
		if info, err := os.Lstat(path); err == nil && !(n.replaces && info.Mode().IsRegular()) {
			switch {
			case !fixed:
				continue
			case n.replaces:
				return "", nil, fmt.Errorf("%s is no regular file, which alone is overwritten: %w", path, fs.ErrExist)
			}
			return "", nil, fmt.Errorf("%s: %w: remove it, overwrite it (overwrite: true, or --force), or give a name "+
				"with the time, such as capture-%%Y%%m%%d-%%H%%M%%S.pcapng", path, fs.ErrExist)
		}
		if n.replaces {
			if err := os.Remove(path + partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", nil, err
			}
		}
		f, err = os.OpenFile(path+partial, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		switch {
		case err == nil:
			n.number, n.numbered = max(n.number, k), !n.timed
			return path, f, nil
		case !errors.Is(err, fs.ErrExist):
			return "", nil, err
		case fixed:
			return "", nil, fmt.Errorf("%s is left of a run that was killed, or another one writes it: rename, "+
				"remove or overwrite it (overwrite: true, or --force): %w", path+partial, fs.ErrExist)
		}
	}
}

// publish gives a whole file its name.
func (n *naming) publish(from, to string) error {
	dir, err := os.Open(n.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = sys.Rename(dir, filepath.Base(from), dir, filepath.Base(to), n.replaces)
	if sys.IsErrno(err, sys.EINVAL) { // a file system without RENAME_NOREPLACE
		return os.Rename(from, to)
	}
	return err
}

// prune removes the oldest files until all take at most keep bytes, and at most so many are whole,
// unless that is 0; those that wait go last. The file at newest stays.
func (n *naming) prune(keep int64, files int, newest string, waits func(string, fs.FileInfo) int) (waited int,
	err error) {
	type file struct {
		name string
		fs.FileInfo
		waits int
	}
	var all []file
	var sum int64
	err = n.each(func(name string, info fs.FileInfo) {
		sum += info.Size()
		if !strings.HasSuffix(name, partial) && name != filepath.Base(newest) {
			all = append(all, file{name, info, waits(name, info)})
		}
	})
	slices.SortFunc(all, func(a, b file) int {
		return cmp.Or(a.waits-b.waits, a.ModTime().Compare(b.ModTime()), strings.Compare(a.name, b.name))
	})
	for i, f := range all {
		if (keep == 0 || sum <= keep) && (files == 0 || len(all)-i+1 <= files) {
			break
		}
		if e := os.Remove(filepath.Join(n.dir, f.name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
			continue
		}
		sum -= f.Size()
		waited += f.waits
	}
	return waited, err
}
