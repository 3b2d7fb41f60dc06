package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
)

// Options say what is served. Only Root is required.
type Options struct {
	// Root is a file, or a directory all files below which are served.
	Root string
	// Writable lets peers upload files below Root, which must be a directory then. They get the
	// paths that PathOf permits.
	Writable bool
	// Removable, beside Writable, lets peers also remove files below Root that are served.
	Removable bool
	// Tensors exports each tensor of a safetensors file as NAME/TENSOR, and the array of an npy
	// file as NAME/array, beside the file itself. All are views of the one mapped file.
	Tensors bool
	// Hidden serves files and directories whose names begin with a dot, too.
	Hidden bool
	// FollowLinks serves what a symbolic link leads to under the link's path, when that is a file
	// or directory below Root. Without it, and when it leads elsewhere, a link is left out; without
	// it, a Mirror with KeepLinks has those that lead to a path below Root.
	FollowLinks bool
	// Strong makes tags by SHA-256 of the content, which reads each file once when it is first
	// served. Then a copy of a file on another machine has the same tag, and touching a file does
	// not change it.
	Strong bool
	// MaxFiles bounds how many files are served, uploaded ones included; 0 means 50,000. The kernel
	// allows a process some 65,000 mappings (vm.max_map_count), and each file takes one. Uploads
	// may bring the files and directories below Root to that number: a directory counts as a file,
	// also one that is made on the way to a file.
	MaxFiles int
	// MaxBytes bounds the sum of the sizes of all files below Root that uploads may bring it to, in
	// bytes, with partial uploads and what uploads under way have announced; a directory counts as
	// 4 KiB. 0: only the disk does, of which KeepFree stays free.
	MaxBytes uint64
	// KeepFree is how many bytes of the disk uploads leave free; 0: 1 GiB, or the twentieth part of
	// a disk of less than 20 GiB. KeepNoneFree lets them fill it.
	KeepFree uint64
	// KeepPartial is how long the part of an upload that ended early is kept after the last byte of
	// it came, so that it can be resumed by the peer that began it; each Rescan and each upload
	// that begins removes what is older. 0: 24 hours; KeepForever: until it is removed by hand.
	// Until then it counts against MaxFiles and MaxBytes. Of each peer (transfer.Peer.Principal)
	// 256 are kept in any case at most: the oldest makes room for the next.
	KeepPartial time.Duration
	// RescanEvery is how often the directory is scanned for new, changed and removed files, so that
	// listings are fresh. 0: only by Rescan. A directory in which the kernel reports no change is
	// scanned less often: scans take the thousandth part of the time at most then. One in which it
	// does is also scanned when a peer asks for a listing. Files that peers ask for are looked at
	// in any case.
	RescanEvery time.Duration
	// MayUpload, if any, decides about each upload, beside Writable: an error refuses it, and the
	// peer gets its text.
	MayUpload func(p *transfer.Peer, name string, size uint64) error
	// MayRemove, if any, decides about each removal, beside Removable: an error refuses it, and the
	// peer gets its text.
	MayRemove func(p *transfer.Peer, name string) error
	// OnRemove, if any, is called when a peer has removed a file. It must not block.
	OnRemove func(Removed)
	// OnAccess, if any, is called when a peer begins to read or upload something and when that
	// ends, of each first the one and then the other. Several goroutines may call it at a time; it
	// must not block.
	OnAccess func(Access)
	// Logger logs files that come, go and are left out; nil is silent.
	Logger *slog.Logger
}

// check returns an error if a field has a value that it cannot have, or one that contradicts
// another.
func (o *Options) check() error {
	switch {
	case o.Root == "":
		return errors.New("Options.Root is empty: expected a file or a directory")
	case o.MaxFiles < 0:
		return fmt.Errorf("Options.MaxFiles is %d: expected at least 1, or 0 for %d", o.MaxFiles, DefaultMaxFiles)
	case o.KeepPartial < 0 && o.KeepPartial != KeepForever:
		return fmt.Errorf("Options.KeepPartial is %v: expected a positive time, 0 for a day, or KeepForever",
			o.KeepPartial)
	case o.RescanEvery < 0:
		return fmt.Errorf("Options.RescanEvery is %v: expected a positive time, or 0 for never", o.RescanEvery)
	case o.Removable && !o.Writable:
		return errors.New("Options.Removable is set without Options.Writable: expected both, for whoever removes " +
			"files writes")
	}
	return nil
}

// Server serves files of this node. Its methods may be called from any goroutine.
type Server struct {
	node   *transfer.Node
	o      Options
	log    *slog.Logger
	root   *os.Root
	dir    *os.File // root
	umask  fs.FileMode
	only   string // the one file of root that is served; "": all
	remove []func()
	stop   context.CancelFunc
	ctx    context.Context // ends with Close
	wg     sync.WaitGroup

	uploads uploads
	access  accesses
	watch   *watch // nil: every scan is made

	// held while files are opened, exported and dropped, which nothing does after the end of ctx;
	// before mu
	work sync.Mutex

	scanned chan struct{} // closed at the end of the first scan

	mu      sync.Mutex // guards what follows
	closed  bool
	files   map[string]*served // by path
	names   map[string]view    // by name, those of tensors included
	skipped map[string]string  // why, by path; of the last scan, and since
	// skipping is skipped of the scan under way; nil: there is none.
	skipping map[string]string
	skips    int // names left out since the scan under way began, those beyond maxSkipped included
	left     int // skips of the last whole scan
	// unserved are the sizes of files that are there and could not be served, by path: they count
	// against what uploads may bring.
	unserved    map[string]uint64
	unservedSum uint64 // of unserved
	// sizes of uploaded files that are served as soon as a peer asks for them or for a list, or a
	// scan sees them; by path
	arrived      map[string]uint64
	dirCount     dirCount
	empty        map[string]bool // names of directories without files
	emptying     map[string]bool // empty of the scan under way; nil: there is none
	links        []link          // that are not followed, in the order of their names; never written to
	linking      []link          // links of the scan under way
	lack         lack            // of listings
	found        lack            // by the scan under way
	lacked       uint64          // times that something could not be looked at
	bytes        uint64          // of files
	arrivedBytes uint64          // of arrived
	scans        uint64
	changes      uint64
}

// Values of Options that lift a limit.
const (
	KeepForever  time.Duration = -1             // of KeepPartial
	KeepNoneFree uint64        = math.MaxUint64 // of KeepFree
)

// DefaultMaxFiles is the MaxFiles of Options that name none.
const DefaultMaxFiles = 50_000

const (
	defaultKeepPartial = 24 * time.Hour
	defaultKeepFree    = 1 << 30
	// maxSkipped bounds how many reasons are kept.
	maxSkipped = 1000
	// revokeTime bounds how long a peer's confirmation is waited for. The memory stays mapped until
	// it comes in any case.
	revokeTime = 10 * time.Second
)

// Skipped is something below the root that is not served, or not as it is now.
type Skipped struct {
	Path   string `json:"path"` // below Root, with slashes
	Reason string `json:"reason"`
}

// Snapshot is what a Server serves at a moment.
type Snapshot struct {
	Root     string `json:"root"`
	Writable bool   `json:"writable"`
	Files    int    `json:"files"`
	Tensors  int    `json:"tensors"` // exported beside their files
	Bytes    uint64 `json:"bytes"`   // of all files
	Scans    uint64 `json:"scans"`   // of the whole tree
	Changes  uint64 `json:"changes"` // files that were added, replaced or dropped
	// Complete says that everything could be looked at and is served that is not left out by its
	// nature: a name that is not listed is not there. A Mirror deletes nothing otherwise.
	Complete bool `json:"complete"`

	Skipped []Skipped        `json:"skipped,omitempty"`
	Uploads []UploadSnapshot `json:"uploads,omitempty"` // under way
	// under way, as far as readers say so; only with Options.OnAccess
	Reads []ReadSnapshot `json:"reads,omitempty"`
}

// Serve exports the files below o.Root until Close. It returns when all of them have been looked
// at. The Server belongs to the caller, who closes it before the node. A node has one share at a
// time.
func Serve(ctx context.Context, node *transfer.Node, o Options) (*Server, error) {
	if err := invariants.Context(ctx, "share.Serve"); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("share: serve: %w", err)
	}
	if node == nil {
		return nil, errors.New("share: serve: the node is nil: expected one of transfer.Open")
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	if o.KeepPartial == 0 {
		o.KeepPartial = defaultKeepPartial
	}
	s := &Server{node: node, o: o, log: o.Logger, files: map[string]*served{}, names: map[string]view{},
		skipped: map[string]string{}, scanned: make(chan struct{}), unserved: map[string]uint64{},
		dirCount: dirCount{map[string]bool{}, map[string]int{}}, arrived: map[string]uint64{}, empty: map[string]bool{},
		lack: lackScan, lacked: rand.Uint64()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	fi, err := os.Stat(o.Root)
	if err != nil {
		return nil, fmt.Errorf("share: serve: %w", err)
	}
	dir := o.Root
	switch {
	case fi.Mode().IsRegular():
		if o.Writable {
			return nil, fmt.Errorf("share: serve %s: uploads need a directory to go to, and this is a file", o.Root)
		}
		dir, s.only = filepath.Split(o.Root)
		if dir == "" {
			dir = "."
		}
	case !fi.IsDir():
		return nil, fmt.Errorf("%w: serve %s: it is %s, expected a file or a directory", ErrUnsafe, o.Root,
			kind(fi.Mode()))
	}
	if s.root, err = os.OpenRoot(dir); err != nil {
		return nil, fmt.Errorf("share: serve: %w", err)
	}
	if s.dir, err = s.root.Open("."); err != nil {
		return nil, errors.Join(fmt.Errorf("share: serve: %w", err), s.root.Close())
	}
	if s.umask, err = sys.Umask(); err != nil {
		return nil, errors.Join(fmt.Errorf("share: serve: %w", err), s.dir.Close(), s.root.Close())
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.uploads.keep = maxPartialsOfOne
	s.access.reads, s.access.changed = map[*transfer.Peer]map[uint64]*access{}, make(chan struct{})
	handle := func(service string, need identity.Rights, h transfer.Handler) {
		if err != nil {
			return
		}
		var remove func()
		if remove, err = node.Handle(service, func(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
			if err := p.Require(need); err != nil {
				return nil, err
			}
			return h(ctx, p, b)
		}); err != nil {
			err = fmt.Errorf("share: serve: only one share of a node: %w", err)
			return
		}
		s.remove = append(s.remove, remove)
	}
	s.remove = append(s.remove, node.OnLookup(s.asked))
	handle(listingService, identity.List, s.listed)
	handle(leftOutService, identity.List, s.leftOutNames)
	handle(linksService, identity.List, s.listLinks)
	handle(dirsService, 0, s.dirs)
	handle(statService, identity.Read, s.statted)
	handle(wholeService, identity.Read, s.whole)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if o.RescanEvery > 0 && s.only == "" {
		s.watch = newWatch()
	}
	s.watch.begins()
	if err := s.Rescan(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.watch.ends()
	close(s.scanned)
	if reason := s.skipped[s.only]; s.only != "" && reason != "" {
		return nil, errors.Join(fmt.Errorf("share: serve %s: %s", o.Root, reason), s.Close())
	}
	if o.Writable {
		s.uploads.active, s.uploads.idle, s.uploads.patience = map[string]*upload{}, idleUpload, answerTime
		s.uploads.small = smalls{rooms: map[*smallRoom]bool{}, paths: map[string]uint64{}}
		handle(uploadService, 0, s.called)
		handle(smallService, identity.Write, s.small)
		handle(removeService, identity.Write, s.removeAsked)
	}
	if o.OnAccess != nil {
		handle(readService, 0, s.read)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if o.RescanEvery > 0 {
		s.wg.Go(s.poll)
	}
	return s, nil
}

func (s *Server) poll() {
	t := time.NewTicker(s.o.RescanEvery)
	defer t.Stop()
	replaced := false
	var due <-chan time.Time // when a scan that a peer asks for may begin; nil: none waits for one
	for {
		select {
		case <-t.C:
			err := s.Err()
			if err != nil && !replaced {
				s.log.Warn("rescan", "error", err)
			}
			replaced = err != nil
			s.mu.Lock()
			again := s.lack == lackSome // what could not be looked at perhaps can now
			s.mu.Unlock()
			if !again && !s.watch.needed() {
				continue
			}
		case <-s.watch.wanted():
			if due == nil {
				due = time.After(s.watch.pause())
			}
			continue
		case <-due:
			if due = nil; !s.watch.changed() {
				continue
			}
		case <-s.ctx.Done():
			return
		}
		due = nil // who needs another scan asks again when this one ends
		s.watch.begins()
		if err := s.Rescan(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Warn("rescan", "error", err)
		}
		s.watch.ends()
	}
}

// Close ends the share: every export is revoked, so that peers reach the files no more, and what
// they fetch right now ends with an error. It waits for the peers' confirmations, for ten seconds
// at most; later ones only delay the unmapping. Uploads wait for theirs without a limit, which the
// node sets: it gives up peers that do not confirm. A Queue of such a peer that its owner neither
// polls nor closes holds that up. Partial uploads stay for another time.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	for _, f := range s.remove {
		f()
	}
	s.uploads.mu.Lock() // no upload and no read begins any more
	s.access.mu.Lock()
	s.stop()
	s.access.mu.Unlock()
	s.uploads.mu.Unlock()
	s.watch.close()
	s.wg.Wait()
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	files := s.files
	s.files, s.names = map[string]*served{}, map[string]view{}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), revokeTime)
	defer cancel()
	// all of them, also when ctx has ended
	several(context.Background(), maps.Values(files), 16, func(f *served) { f.end(ctx) })
	return errors.Join(s.dir.Close(), s.root.Close())
}

// Snapshot says what is served now, and what is not and why.
func (s *Server) Snapshot() Snapshot {
	uploads, reads := s.uploadSnapshots(), s.readSnapshots()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := Snapshot{Uploads: uploads, Reads: reads, Root: s.o.Root, Writable: s.o.Writable, Files: len(s.files) +
		len(s.arrived), Bytes: s.bytes + s.arrivedBytes, Scans: s.scans, Changes: s.changes,
		Tensors: len(s.names) - len(s.files), Complete: s.lack == lackNothing}
	for p, r := range s.skipped {
		n.Skipped = append(n.Skipped, Skipped{p, r})
	}
	slices.SortFunc(n.Skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	return n
}

// asked is called when a peer asks for a name, or for a list, before it is answered. A name waits
// for the end of the first scan, a list for some seconds.
func (s *Server) asked(ctx context.Context, _ *transfer.Peer, name string) {
	if name == "" {
		s.upToDate(ctx, 0, false)
		return
	}
	s.awaitScan(ctx)
	s.lookedUp(ctx, name)
}

// lookedUp looks at the files that a name may stand for.
func (s *Server) lookedUp(ctx context.Context, name string) {
	for _, p := range s.pathsFor(name) {
		if !s.isCurrent(p) {
			s.lookNow(ctx, p)
		}
	}
}

// lookNow is lookAt of a Server that may be closed.
func (s *Server) lookNow(ctx context.Context, p string) {
	s.work.Lock()
	defer s.work.Unlock()
	if s.ctx.Err() == nil {
		s.lookAt(ctx, p)
	}
}

// pathsFor are the paths below the root whose file may serve a name: the one that does now, or
// those that could.
func (s *Server) pathsFor(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.names[name]; ok {
		return []string{v.of.path}
	}
	var out []string
	for i := 0; s.o.Tensors && i < len(name); i++ { // a tensor that a changed file may have now
		if name[i] != '/' {
			continue
		}
		if v, ok := s.names[name[:i]]; ok {
			out = append(out, v.of.path)
		} else if _, ok := s.arrived[name[:i]]; ok {
			out = append(out, name[:i])
		}
	}
	if fs.ValidPath(name) && name != "." && !slices.Contains(out, name) {
		out = append(out, name)
	}
	return slices.DeleteFunc(out, func(p string) bool {
		return s.only != "" && p != s.only || strings.Count(p, "/") > maxDepth ||
			slices.ContainsFunc(strings.Split(p, "/"), s.hidden)
	})
}

// served is a file that is exported.
type served struct {
	path    string
	id      fileID
	mode    fs.FileMode
	tag     Tag
	region  *mem.Region
	views   []view     // the file itself first, then its tensors
	omitted []omission // of its tensors
}

func (f *served) like() like { return like{time.Unix(0, f.id.modified), f.mode} }

// view is one export of a file.
type view struct {
	of     *served
	tag    Tag
	export *transfer.Export
}

// end revokes all exports of a file and closes its region; the mapping goes when the last reader is
// done.
func (f *served) end(ctx context.Context) {
	for _, v := range f.views {
		v.export.Revoke(ctx) // an error only says that a peer has not confirmed yet: its lease keeps the memory
	}
	f.region.Close()
}

// drop ends a file, and frees the names that no newer one has taken over. s.work is held.
func (s *Server) drop(f *served) {
	s.mu.Lock()
	replaced := s.files[f.path] != f
	if !replaced {
		delete(s.files, f.path)
		s.changes++
	}
	for _, v := range f.views {
		if n := v.export.Name(); s.names[n].of == f {
			delete(s.names, n)
		}
	}
	s.bytes -= uint64(f.id.size)
	s.mu.Unlock()
	// The names are free at once, the peers' confirmations are not waited for.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.end(ctx)
	if !replaced {
		s.log.Info("no longer served", "path", f.path)
	}
}
