package card

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/sys"
)

// ErrRecord: a record cannot be read or written. The text names the file.
var ErrRecord = errors.New("the record of what is changed on the card")

// Identity tells devices apart that have one name.
type Identity struct {
	Boot    string `json:"boot"`    // of the kernel
	Network string `json:"network"` // the network namespace
	Index   int    `json:"index"`   // of the interface
	Bus     string `json:"bus"`     // address of the card; empty for software
}

// Identify is the identity of a device in the calling thread's network namespace.
func Identify(index int, bus string) (id Identity, err error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, fmt.Errorf("card: which boot this is: %w", err)
	}
	cookie, err := sys.NetworkCookie()
	if err != nil {
		return id, fmt.Errorf("card: which network namespace this is: %w", err)
	}
	return Identity{strings.TrimSpace(string(b)), strconv.FormatUint(cookie, 10), index, bus}, nil
}

// DefaultDir is the directory of records: /run/penstock/xdp for root, else penstock/xdp below
// $XDG_RUNTIME_DIR.
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/run/penstock/xdp", nil
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		return filepath.Join(d, "penstock", "xdp"), nil
	}
	return "", fmt.Errorf("%w: no directory for it: XDG_RUNTIME_DIR is not set: %w", ErrRecord, fs.ErrNotExist)
}

// record is what is about to be changed on a card, or was.
type record struct {
	Version int      `json:"version"`
	Device  Identity `json:"device"`
	Name    string   `json:"name"` // of the interface, for people
	// Rules are those in the card, and those that are about to be, which have no place yet
	// (ethtool.AnyLocation).
	Rules []ethtool.FlowSpec `json:"rules,omitempty"`
	RSS   *spread            `json:"rss,omitempty"`
}

// spread is a table of RSS that was changed.
type spread struct {
	Before  []uint32 `json:"before"`
	Default bool     `json:"default"` // the kernel's own: it is given back to the kernel
	Ours    []uint32 `json:"ours"`
}

const (
	recordVersion = 1
	mostRecord    = 8 << 20 // bytes: more than any record has
	mostRules     = 1 << 14
	mostTable     = 1 << 16
)

// parseRecord reads a record. What it says is only ever compared with what a card has.
func parseRecord(b []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	switch {
	case r.Version != recordVersion:
		return nil, fmt.Errorf("version %d: expected %d, that of this program", r.Version, recordVersion)
	case len(r.Rules) > mostRules:
		return nil, fmt.Errorf("%d rules: expected at most %d", len(r.Rules), mostRules)
	case r.RSS != nil && (len(r.RSS.Before) > mostTable || len(r.RSS.Ours) > mostTable ||
		len(r.RSS.Ours) != len(r.RSS.Before) || len(r.RSS.Ours) == 0):
		return nil, fmt.Errorf("tables of %d and %d entries: expected as many of each, 1 to %d", len(r.RSS.Before),
			len(r.RSS.Ours), mostTable)
	}
	return r, nil
}

// store is where the record of one device is.
type store struct {
	dir  string
	file string
}

func (s *store) path() string { return filepath.Join(s.dir, s.file) }

func newStore(dir string, id Identity) store {
	return store{dir, id.Network + "-" + strconv.Itoa(id.Index) + ".json"}
}

// trusted refuses what others may write.
func trusted(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if id := sys.Identity(fi); int(id.UID) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s belongs to user %d with mode %v: expected user %d and no write permission for others",
			f.Name(), id.UID, fi.Mode().Perm(), os.Geteuid())
	}
	return nil
}

// load reads the record of the device; nil if there is none, or one of another boot or device,
// which is removed.
func (s *store) load(id Identity) (*record, error) {
	f, err := os.OpenFile(s.path(), os.O_RDONLY|sys.ONoFollow|sys.ONonblock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	defer f.Close()
	if err := trusted(f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, mostRecord))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	r, err := parseRecord(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w; see \"ethtool -n\" and \"ethtool -x\", and remove it if the card is as "+
			"it should be", ErrRecord, s.path(), err)
	}
	if r.Device != id {
		return nil, s.remove()
	}
	return r, nil
}

// save writes the record: after a crash there is the old one or the new one.
func (s *store) save(r *record) error {
	err := func() error {
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return err
		}
		d, err := os.Open(s.dir)
		if err != nil {
			return err
		}
		defer d.Close()
		if err := trusted(d); err != nil {
			return err
		}
		next := s.path() + ".new" // no other process writes records of this device
		if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(append(b, '\n'))
		err = errors.Join(err, f.Sync(), f.Close())
		if err == nil {
			err = os.Rename(next, s.path())
		}
		if err != nil {
			os.Remove(next)
			return err
		}
		return d.Sync()
	}()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return nil
}

func (s *store) remove() error {
	if err := os.Remove(s.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return nil
}
