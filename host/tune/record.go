package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-io/penstock/internal/sys"
)

// record is what was there before an interface was tuned, as a file.
type record struct {
	Version   int      `json:"version"`
	Interface string   `json:"interface"`
	Device    identity `json:"device"`
	// Entries are in the order in which the settings were changed first; those that no step asks
	// for come behind them.
	Entries []entry `json:"entries"`
	// Unfinished: an Apply or Undo is at work, or was killed. Whatever is other than before is its
	// doing then.
	Unfinished bool `json:"unfinished,omitempty"`
}

func (r *record) find(s Setting) int {
	return slices.IndexFunc(r.Entries, func(e entry) bool { return e.Setting == s })
}

// entry is a setting that was changed, was about to be, or may have changed as a consequence.
type entry struct {
	Setting Setting `json:"setting"`
	What    string  `json:"what"`
	Host    bool    `json:"host,omitempty"`
	From    string  `json:"from"` // before the first Apply
	// values that an Apply has set, or read after it had set one; none: never changed
	Ours []string `json:"ours,omitempty"`
}

const recordVersion = 1

// mostRecord is more than any record has.
const mostRecord = 4 << 20

// DefaultStateDir is the directory of the records: /var/lib/penstock/tune for root, else
// penstock/tune below $XDG_STATE_HOME or ~/.local/state.
func DefaultStateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/penstock/tune", nil
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "penstock", "tune"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%w: where to keep it: %w", ErrState, err)
	}
	return filepath.Join(home, ".local", "state", "penstock", "tune"), nil
}

// store is the directory of records, locked against other processes.
type store struct {
	dir  string
	lock *os.File
}

// openStore opens and locks the directory. Without make the error wraps fs.ErrNotExist where there
// is none.
func openStore(dir string, make bool) (*store, error) {
	if dir == "" {
		var err error
		if dir, err = DefaultStateDir(); err != nil {
			return nil, err
		}
	}
	if make {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrState, err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	if err := trusted(f); err != nil {
		f.Close()
		return nil, err
	}
	ok, err := sys.TryFileLock(f)
	if err == nil && !ok {
		err = fmt.Errorf("%w, in %s: wait for its end", ErrBusy, dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err == nil { // of a process that was killed
		for _, x := range left {
			os.Remove(x)
		}
	}
	return &store{dir, f}, nil
}

func (s *store) close() { s.lock.Close() }

// trusted refuses what others may write: a record says which values to set, as root.
func trusted(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if id := sys.Identity(fi); int(id.UID) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: %s belongs to user %d with mode %v: expected user %d and no other user with the right "+
			"to write", ErrState, f.Name(), id.UID, fi.Mode().Perm(), os.Geteuid())
	}
	return nil
}

// file is the record's name. The network namespace is in it: two of them may have an eth0 each.
func (s *store) file(iface string, id identity) string {
	return filepath.Join(s.dir, url.PathEscape(iface)+"@"+url.PathEscape(id.Network)+".json")
}

// load reads the record of an interface; nil if there is none, or one of an earlier boot, which
// says nothing any more and is removed.
func (s *store) load(iface string, id identity) (r *record, rebooted bool, err error) {
	name := s.file(iface, id)
	f, err := os.OpenFile(name, os.O_RDONLY|sys.ONoFollow|sys.ONonblock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrState, err)
	}
	defer f.Close()
	if err := trusted(f); err != nil {
		return nil, false, err
	}
	b, err := io.ReadAll(io.LimitReader(f, mostRecord))
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrState, err)
	}
	if r, err = parseRecord(b); err != nil {
		return nil, false, fmt.Errorf("%w: %s: %w; look at it, and remove it if the host is as it should be", ErrState,
			name, err)
	}
	if r.Interface != iface || r.Device.Network != id.Network {
		return nil, false, fmt.Errorf("%w: %s is about %q in network namespace %s", ErrState, name, r.Interface,
			r.Device.Network)
	}
	if r.Device.Boot != id.Boot {
		return nil, true, s.remove(iface, id)
	}
	return r, false, nil
}

func parseRecord(b []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("version %d: expected %d, that of this program", r.Version, recordVersion)
	}
	seen := map[Setting]bool{}
	for _, e := range r.Entries {
		if e.Setting == "" || seen[e.Setting] {
			return nil, fmt.Errorf("setting %q is empty or there twice", e.Setting)
		}
		seen[e.Setting] = true
	}
	return r, nil
}

// save writes the record so that after a crash there is the old one or the new one, on the disk.
func (s *store) save(r *record) error {
	err := func() error {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		name := s.file(r.Interface, r.Device)
		f, err := os.CreateTemp(s.dir, ".new-*") // mode 0600
		if err != nil {
			return err
		}
		_, err = f.Write(append(b, '\n'))
		err = errors.Join(err, f.Sync(), f.Close())
		if err == nil {
			err = os.Rename(f.Name(), name)
		}
		if err != nil {
			os.Remove(f.Name())
			return err
		}
		return s.lock.Sync()
	}()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return nil
}

func (s *store) remove(iface string, id identity) error {
	err := os.Remove(s.file(iface, id))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, s.lock.Sync()); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return nil
}
