package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
)

// MirrorOptions say what is mirrored. The zero value mirrors everything and deletes nothing.
type MirrorOptions struct {
	Prefix string  // only names that begin with it
	Filter *Filter // if not nil, only names that it takes; Delete leaves others alone
	// Delete removes files that an earlier Mirror into this directory made, under the same Prefix,
	// and whose names are gone at the other side. Files that Mirror did not make are never removed,
	// and none is unless the other side says that its listing is complete: the error is
	// ErrIncomplete then.
	Delete bool
	// Force replaces files that Mirror did not make, or that were changed here. Directories, and
	// links that Mirror did not make, are never replaced.
	Force bool
	// KeepLinks makes the symbolic links that the other side has and does not follow, each with the
	// text that it has there. One that leads out of dir is left out: whose path is absolute, goes
	// up behind a name, or goes up further than dir. A link with the same text that is there
	// already counts as made by Mirror.
	KeepLinks bool
	// Checksum compares contents where a file of the same size is there, and times or the record
	// say nothing: both sides compute its SHA-256. What is the same is kept, and counts as made by
	// Mirror from then on.
	Checksum bool
	Parallel int  // files fetched at once, 100 at most; 0 means 4 large ones and, beside them, 60 of up to 256 KiB
	DryRun   bool // only says what would be done, in the order of the names, files before links
	// Parts also mirrors names inside other names ("model.safetensors/wq" beside
	// "model.safetensors"), where it can; without it they are left out, because they are views of
	// the file that is mirrored anyway.
	Parts bool
	// Progress, if any, is called as bytes are verified, by one goroutine at a time. It must not
	// block.
	Progress func(MirrorProgress)
	// OnFile, if any, is called once for each file when it is dealt with, by one goroutine at a
	// time. It must not block.
	OnFile func(MirrorFile)
}

// MirrorProgress is how far a mirror is. Bytes are those of files that are to be fetched: a file
// that turns out to be there, or fails, leaves them.
type MirrorProgress struct {
	Files, FilesDone int
	FilesFailed      int // not in FilesDone
	// to fetch; done includes what earlier attempts had left, and what is there of files under way
	Bytes, BytesDone uint64
	Current          Progress
}

// MirrorAction says what became of one name.
type MirrorAction string

// What Mirror and UploadTree do with a name.
const (
	MirrorFetched MirrorAction = "fetched"
	MirrorSkipped MirrorAction = "skipped" // it is there already
	MirrorDeleted MirrorAction = "deleted"
	MirrorFailed  MirrorAction = "failed"
	MirrorSent    MirrorAction = "sent"     // by UploadTree
	MirrorLeftOut MirrorAction = "left out" // by UploadTree: it is no file
)

// MirrorFile is what became of one name. In a dry run it is what would.
type MirrorFile struct {
	Name   string       `json:"name"`
	Path   string       `json:"path"` // below the directory, with slashes; of UploadTree, of the file here
	Size   uint64       `json:"size"` // bytes
	Action MirrorAction `json:"action"`
	Moved  uint64       `json:"moved"`          // bytes
	Link   string       `json:"link,omitempty"` // the text of a symbolic link; "": it is a file
	Err    error        `json:"-"`              // why it failed, or was left out
}

// Mirrored is the account of a Mirror: each name of the catalog is in one of the counts, and so is
// each deleted file.
type Mirrored struct {
	Fetched, Skipped, Failed, Deleted int
	Parts                             int // names that were left out as parts of others
	Excluded                          int // names that the Filter leaves out
	Undeleted                         int // files that Delete would have deleted, if Incomplete were nil
	// what the other side does not serve, under Prefix and of the Filter, and links that cannot be
	// kept; the list is cut where it gets long
	LeftOut      []Skipped
	LeftOutTotal int // of them
	// why the listing may lack names, with Delete also that nothing is said about it
	Incomplete error
	Moved      uint64 // bytes moved now
	Failures   []MirrorFile
	Duration   time.Duration
}

// Mirror makes the directory dir, which is created if it is missing, hold what the other side has:
// each name at the path that PathOf gives it, with the modification time and the permissions that
// the file has there, minus the umask. What is there with the size and tag that an earlier
// Mirror recorded, and was not changed since, is skipped; what is partial is resumed. The record is
// the file .penstock-mirror in dir. Directories without files are made, and stay when they are gone
// at the other side. A file that is in the way and was not made by Mirror is not touched, unless
// Force is set: that name fails.
//
// The error is nil if every name was dealt with; it wraps the first failure otherwise, and the
// account holds all of them. It is ErrIncomplete if files were to be deleted and the listing does
// not say which. When ctx ends, files that are complete stay recorded, and those under way are in
// no count. One Mirror at a time may work on a directory: ErrBusy.
func Mirror(ctx context.Context, c Conn, dir string, o MirrorOptions) (*Mirrored, error) {
	if err := invariants.Context(ctx, "share.Mirror"); err != nil {
		return nil, err
	}
	begin := time.Now()
	if o.Parallel < 0 {
		return nil, fmt.Errorf("share: mirror: MirrorOptions.Parallel is %d: expected at least 1, or 0", o.Parallel)
	}
	o.Parallel = min(o.Parallel, maxParallel)
	if o.DryRun {
		o.Parallel = 1 // a dry run moves no bytes, and its reports are in order
	}
	ctx, cancel := context.WithCancel(ctx)
	var ahead sync.WaitGroup
	defer ahead.Wait()
	defer cancel()
	if _, err := os.Lstat(filepath.Join(dir, recordName)); errors.Is(err, fs.ErrNotExist) && !o.DryRun {
		// so there are files to fetch
		defer c.ready(ctx)()
	}
	names, end, err := listing(ctx, c, o.Prefix)
	if err != nil {
		return nil, err
	}
	var links []link
	if o.KeepLinks {
		if links, err = linksOf(ctx, c, o.Prefix); err != nil {
			return nil, err
		}
	}
	if o.DryRun {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			empty, terr := os.MkdirTemp("", "penstock-mirror")
			if terr != nil {
				return nil, fmt.Errorf("share: mirror: %w", terr)
			}
			defer os.Remove(empty)
			dir = empty
		}
	} else if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("share: mirror: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("share: mirror: %w", err)
	}
	defer root.Close()
	rootDir, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("share: mirror: %w", err)
	}
	defer rootDir.Close()
	m := &mirror{tally: newTally(o.Progress, o.OnFile), c: c, o: o, root: root, rootDir: rootDir, dir: dir,
		names: names, offered: links}
	if m.umask, err = sys.Umask(); err != nil {
		return nil, fmt.Errorf("share: mirror: %w", err)
	}
	if err := m.openRecord(); err != nil {
		return nil, err
	}
	defer m.closeRecord()
	there := m.plan()
	small, large := []int(nil), m.todo
	if o.Parallel == 0 {
		small, large = bySize(m.todo, func(i int) uint64 { return names[i].Size })
	}
	smallPages, largePages := m.pages(ctx, &ahead, small), m.pages(ctx, &ahead, large)
	if err := m.ask(ctx, end); err != nil {
		return nil, err
	}
	m.leave(there)
	m.run(ctx, smallPages, largePages)
	m.makeLinks(ctx)
	m.sum.Fetched, m.sum.Skipped, m.sum.Failed, m.sum.Deleted = m.files[MirrorFetched], m.files[MirrorSkipped],
		m.files[MirrorFailed], m.files[MirrorDeleted]
	m.sum.Moved, m.sum.Failures, m.sum.Duration = m.moved, m.failures, time.Since(begin)
	if err := ctx.Err(); err != nil {
		return &m.sum, fmt.Errorf("share: mirror: %w", err)
	}
	var failed, kept error
	if n := len(m.sum.Failures); n > 0 {
		failed = fmt.Errorf("share: mirror: %d of %d names failed, the first: %w", n, len(names)+len(links),
			m.sum.Failures[0].Err)
	}
	if o.Delete && m.sum.Incomplete != nil {
		kept = fmt.Errorf("share: mirror: nothing was deleted (%d names are not listed): %w", m.sum.Undeleted,
			m.sum.Incomplete)
	}
	return &m.sum, errors.Join(failed, kept)
}

const (
	// maxParallel keeps the requests of all files together below what a session allows
	// (control.MaxPendingRequests): each has up to two.
	maxParallel = 100
	largeAtOnce = 4 // fill a link
	smallAtOnce = 60
)

type mirror struct {
	tally
	c       Conn
	o       MirrorOptions
	root    *os.Root
	rootDir *os.File // root
	dir     string
	umask   fs.FileMode
	names   []Entry   // all of the other side, without tags
	todo    []int     // of names
	offered []link    // links of the other side, if they are to be kept
	links   []link    // of offered: to be had
	refused []Skipped // of offered
	stale   []string  // recorded names that are to be deleted
	empty   []string  // directories without files
	sum     Mirrored

	// mu guards what follows.
	record  map[string]mirrored
	begun   map[string]mirrored // fetches whose end is not recorded
	file    *os.File            // of the record; nil in a dry run
	broken  error               // why nothing can be recorded any more
	written uint64              // lines of begun files in the record

	syncing sync.Mutex // guards synced; taken before mu
	synced  uint64     // lines of begun files that survive a crash
}

// mirrored is what is recorded of a file: what the other side had, and the file as it was when it
// was complete here.
type mirrored struct {
	size uint64
	tag  Tag
	id   fileID
}

// ask asks the other side for what no listing has, and for the end of the listing.
func (m *mirror) ask(ctx context.Context, end func(context.Context) (lack, error)) error {
	var wg sync.WaitGroup
	var lacks lack
	var errs [3]error
	wg.Go(func() { m.empty, errs[0] = emptyDirs(ctx, m.c, m.o.Prefix) })
	wg.Go(func() { m.sum.LeftOut, m.sum.LeftOutTotal, errs[1] = LeftOut(ctx, m.c, m.o.Prefix) })
	lacks, errs[2] = end(ctx)
	wg.Wait()
	if m.o.Delete || lacks != lackUnsaid {
		m.sum.Incomplete = lacks.err()
	}
	m.leaveLinks()
	return errors.Join(errs[:]...)
}

// plan decides what is to be had, and returns the names that are there.
func (m *mirror) plan() (there map[string]bool) {
	there = make(map[string]bool, len(m.names))
	for _, e := range m.names {
		there[e.Name] = true
	}
	for i, e := range m.names {
		if !m.o.Parts && insideAnother(e.Name, there) {
			m.sum.Parts++
			continue
		}
		if !m.o.Filter.Takes(e.Name) {
			m.sum.Excluded++
			continue
		}
		m.todo = append(m.todo, i)
		if m.progress.Bytes += e.Size; m.progress.Bytes < e.Size { // the other side says so
			m.progress.Bytes = math.MaxUint64
		}
	}
	m.progress.Files = len(m.todo)
	m.planLinks(there)
	return there
}

// leave decides what is deleted.
func (m *mirror) leave(there map[string]bool) {
	for name := range m.record {
		switch {
		case !m.o.Delete || !strings.HasPrefix(name, m.o.Prefix) || there[name] || !m.o.Filter.Takes(name):
		case m.sum.Incomplete != nil: // it may be there all the same
			m.sum.Undeleted++
		default:
			m.stale = append(m.stale, name)
		}
	}
	slices.Sort(m.stale)
}

func insideAnother(name string, there map[string]bool) bool {
	for i := range len(name) {
		if name[i] == '/' && there[name[:i]] {
			return true
		}
	}
	return false
}

// run deletes and fetches.
func (m *mirror) run(ctx context.Context, small, large *pages) {
	// What is gone goes first: it may be in the way ("a" was a file and is a directory now).
	for _, name := range m.stale {
		if ctx.Err() != nil {
			return
		}
		m.done(m.delete(name), false)
	}
	if !m.o.DryRun {
		m.directories()
	}
	var wg sync.WaitGroup
	wg.Go(func() { m.each(ctx, large.one(ctx), cmp.Or(m.o.Parallel, largeAtOnce)) })
	if m.o.Parallel == 0 { // a dry run has it set, and leaves the batches of a mirror that is under way alone
		m.small(ctx, small)
	}
	wg.Wait()
}

// each brings names up to date, some at once.
func (m *mirror) each(ctx context.Context, todo iter.Seq[listed], atOnce int) {
	several(ctx, todo, atOnce, func(e listed) {
		if f := m.one(ctx, e); f.Err == nil || ctx.Err() == nil { // what ctx cuts off has not failed
			m.done(f, true)
		}
	})
}

// task is one name to be brought up to date.
type task struct {
	MirrorFile
	e    listed
	now  os.FileInfo // what is there; nil: nothing
	ours bool        // an earlier mirror made it
	look bool        // its content is to be compared first
	cut  bool        // an earlier fetch of it began, and no end is recorded
	is   fileID      // of the file that is complete
	err  error
}

func (t *task) fail(err error) MirrorFile {
	t.Action, t.Err = MirrorFailed, fmt.Errorf("share: mirror %q: %w", Printable(t.e.Name), err)
	return t.MirrorFile
}

// undisturbed checks that what is at a place is what was there before. What is replaced is ours, or
// there is nothing.
func (t *task) undisturbed(at place) error {
	if !t.ours {
		return nil
	}
	if fi, err := at.dir.Lstat(at.base); err == nil && idOf(fi) != idOf(t.now) { // meanwhile
		return errNotOurs(t.Path)
	}
	return nil
}

// assess finds out what is to be done about a name, and whether that is to fetch it.
func (m *mirror) assess(e listed) (t *task, fetch bool) {
	t = &task{MirrorFile: MirrorFile{Name: e.Name, Size: e.Size, Link: e.to}, e: e}
	if e.to != "" {
		t.Size = 0
	}
	var err error
	if t.Path, err = PathOf(e.Name); err != nil {
		t.fail(err)
		return t, false
	}
	m.mu.Lock()
	was, recorded := m.record[e.Name]
	begun, cut := m.begun[e.Name]
	away := m.away
	m.mu.Unlock()
	now, err := m.look(t.Path)
	var is Tag // of the link that is there
	if err == nil {
		t.now = now
		if now.Mode()&fs.ModeSymlink != 0 {
			var to string
			to, err = m.root.Readlink(t.Path)
			is = link{to: to}.entry().Tag
		}
	}
	complete := err == nil && recorded && idOf(now) == was.id
	// A crash may have come between the end of a fetch and its record.
	plain := err == nil && now.Mode().IsRegular()
	t.ours = complete || cut && (plain && uint64(now.Size()) == begun.size || is != Tag{} && is == begun.tag)
	t.cut = cut
	t.look = m.o.Checksum && plain && e.to == "" && uint64(now.Size()) == e.Size
	t.ours = t.ours || m.o.Force && plain
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		t.fail(err)
		return t, false
	case err == nil && !complete && e.to != "" && is == e.Tag:
		if !m.o.DryRun {
			err = m.note(made{e.Name, mirrored{e.Size, e.Tag, idOf(now)}})
		}
		if t.Action = MirrorSkipped; err != nil {
			t.fail(err)
		}
		return t, false
	case err == nil && !t.ours && !t.look:
		t.fail(errNotOurs(t.Path))
		return t, false
	case complete && was.size == e.Size && was.tag == e.Tag && e.Tag != (Tag{}):
		t.Action = MirrorSkipped
		return t, false
	case away != nil && e.to == "": // each name would wait as long as the one before
		t.fail(away)
		return t, false
	}
	t.Action = MirrorFetched
	if m.o.DryRun {
		t.Moved = t.Size
	}
	return t, !m.o.DryRun || t.look
}

// one brings one name up to date.
func (m *mirror) one(ctx context.Context, e listed) MirrorFile {
	t, needed := m.assess(e)
	if !needed {
		return t.MirrorFile
	}
	if t.look {
		switch same, err := m.alike(ctx, t); {
		case err != nil:
			m.lost(err)
			return t.fail(err)
		case same:
			t.Action, t.Moved = MirrorSkipped, 0
			return t.MirrorFile
		case !t.ours:
			return t.fail(errNotOurs(t.Path))
		case m.o.DryRun:
			return t.MirrorFile
		}
	}
	at, err := placeBelow(m.root, t.Path, m.dir)
	if err != nil {
		return t.fail(err)
	}
	defer at.dir.Close()
	if err := m.begin(e.Entry); err != nil {
		return t.fail(err)
	}
	o := FetchOptions{Overwrite: t.ours, Like: true, Progress: m.advance}
	got, err := fetch(ctx, m.c, e.Name, at, o, func() error { return t.undisturbed(at) })
	if err != nil {
		m.lost(err)
		return t.fail(errors.Join(err, m.notMade(e.Name, t.Path)))
	}
	err = m.like(ctx, got, at)
	fi, lerr := at.dir.Lstat(at.base)
	if err = errors.Join(err, lerr); err == nil {
		err = m.note(made{e.Name, mirrored{got.Size, got.Tag, idOf(fi)}})
	}
	if err != nil {
		return t.fail(err)
	}
	t.Moved, t.Size = got.Moved, got.Size
	return t.MirrorFile
}

func errNotOurs(p string) error {
	return fmt.Errorf("%w: %s was not made by an earlier mirror, or was changed since", ErrExists, p)
}

// look is what is at a path below the directory.
func (m *mirror) look(p string) (os.FileInfo, error) { return lookBelow(m.root, m.rootDir, p) }

// delete removes a file that an earlier mirror made, unless it was changed since.
func (m *mirror) delete(name string) MirrorFile {
	was := m.record[name]
	f := MirrorFile{Name: name, Size: was.size, Action: MirrorDeleted}
	err := func() error {
		var err error
		if f.Path, err = PathOf(name); err != nil {
			return err
		}
		now, err := m.look(f.Path)
		if errors.Is(err, fs.ErrNotExist) { // another process removed it
			return m.forget(name)
		}
		if err != nil {
			return err
		}
		if idOf(now) != was.id {
			return fmt.Errorf("%w: %s was changed since it was mirrored, and is not deleted", ErrExists, f.Path)
		}
		if m.o.DryRun {
			return nil
		}
		dir, err := walk(m.root, f.Path, 0)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := dir.Remove(f.Path[strings.LastIndexByte(f.Path, '/')+1:]); err != nil {
			return err
		}
		for d := f.Path; strings.Contains(d, "/"); { // directories that are empty now
			d = d[:strings.LastIndexByte(d, '/')]
			if m.root.Remove(d) != nil {
				break
			}
		}
		return m.forget(name)
	}()
	if err != nil {
		f.Action, f.Err = MirrorFailed, fmt.Errorf("share: mirror: delete %q: %w", Printable(name), err)
	}
	return f
}
