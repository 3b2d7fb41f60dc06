package rdmadev

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/ibv"
)

// ErrNoDevice says that there is no device of the name that was asked for.
var ErrNoDevice = errors.New("no such RDMA device")

// Library is libibverbs, which is loaded when it is needed first. Any goroutine may use it.
type Library struct {
	Path string // of its file, "" for that of the system

	mu  sync.Mutex
	lib *ibv.Library
}

// Devices are the RDMA devices of this machine, at least one.
func (l *Library) Devices() ([]*ibv.Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib == nil {
		lib, err := ibv.Load(ibv.Options{Path: l.Path})
		if err != nil {
			return nil, err
		}
		l.lib = lib
	}
	all, err := l.lib.Devices()
	if err == nil && len(all) == 0 {
		err = errors.New("this machine has no RDMA device: load the module of the card (mlx5_ib, irdma, bnxt_re), or " +
			"for any network interface, in software and slower: " +
			"rdma link add rxe0 type rxe netdev IF")
	}
	return all, err
}

// Open opens the first device that fit takes, or the one of that name if it is not "". fit gets an
// open device and returns why it does not take it: Open closes it then. The error is ErrNoDevice
// for a name that is not there, and a *Misfit where fit takes none.
func (l *Library) Open(name string, fit func(*ibv.Context) error) (*ibv.Context, error) {
	all, err := l.Devices()
	if err != nil {
		return nil, err
	}
	var names []string
	none := &Misfit{}
	for _, d := range all {
		if names = append(names, d.Name()); name != "" && d.Name() != name {
			continue
		}
		c, err := d.Open()
		if err == nil {
			if err = fit(c); err == nil {
				return c, nil
			}
			err = errors.Join(err, c.Close())
		}
		none.Devices, none.Why = append(none.Devices, d.Name()), append(none.Why, err)
	}
	if none.Devices == nil {
		return nil, fmt.Errorf("there is no RDMA device %q, only %q: %w", name, names, ErrNoDevice)
	}
	return nil, none
}

// Misfit says why no device is the right one.
type Misfit struct {
	Devices []string
	Why     []error // of each
}

func (m *Misfit) Error() string {
	var s []string
	for i, d := range m.Devices {
		s = append(s, fmt.Sprintf("%s (%v)", d, m.Why[i]))
	}
	return strings.Join(s, ", ")
}

// Unwrap are the reasons.
func (m *Misfit) Unwrap() []error { return m.Why }
