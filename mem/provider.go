package mem

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Provider allocates memory of kinds that it knows: this package is one for Host and Huge, a GPU
// runtime is one for HostPinned and Device. Alloc asks the Provider of its Options and owns the
// result.
//
// One whose memory comes in multiples of more than the machine's pages also has Granularity(Kind)
// int, what the sizes of regions of a kind are multiples of, in bytes: an Allocator counts its
// regions so.
type Provider interface {
	// Allocate makes at least o.Size bytes (> 0) of o.Kind, or says why not; errors for kinds it
	// does not have wrap ErrUnavailable. It may be called from several goroutines.
	Allocate(o Options) (Mapping, error)
}

// granular is such a Provider.
type granular interface{ Granularity(Kind) int }

// Pages is the Provider of this package, for Host and Huge: what other Providers build on.
var Pages Provider = hostProvider{}

// Mapping is memory as a Provider hands it over.
type Mapping struct {
	Kind     Kind
	Bytes    []byte // nil where the CPU cannot reach the memory
	Size     uint64 // bytes; len(Bytes) where there are Bytes
	PageSize int    // bytes
	FD       int    // memfd sealed against shrinking, or -1; Free closes it
	NUMANode int    // verified, or -1
	ReadOnly bool
	Note     string        // what differs from what was asked for
	Populate time.Duration // spent on making pages present
	Present  bool          // every page is present, and stays so
	Free     func() error  // called once; nil: nothing to do

	Mover  Mover                                         // required where Bytes is nil
	Handle any                                           // what the Provider knows the memory by
	DMABuf func(off int64, n uint64) (fd int, err error) // a dma-buf of a part of it; nil: it has none
	Direct Direct                                        // how other devices reach it, where Bytes is nil
}

// hostProvider makes Host and Huge memory.
type hostProvider struct{}

func (hostProvider) Allocate(o Options) (Mapping, error) {
	switch o.Kind {
	case Host:
		return allocMemfd(o, 0)
	case Huge:
		return allocHuge(o)
	}
	return Mapping{}, fmt.Errorf("kind %s: %w", o.Kind, ErrUnavailable)
}

func allocHuge(o Options) (Mapping, error) {
	if o.PageSize == 0 {
		o.PageSize = 2 << 20
	}
	if o.PageSize != 2<<20 && o.PageSize != 1<<30 {
		return Mapping{}, fmt.Errorf("huge pages of %d bytes: expected %d (2 MiB) or %d (1 GiB)", o.PageSize, 2<<20,
			1<<30)
	}
	m, err := allocMemfd(o, o.PageSize)
	if err == nil || !o.AllowFallback {
		return m, err
	}
	base, berr := allocMemfd(o, 0)
	if berr != nil {
		return Mapping{}, errors.Join(err, berr)
	}
	note := fmt.Sprintf("base pages instead of huge pages: %v", err)
	if base.Note != "" {
		note += "; " + base.Note
	}
	base.Note = note
	return base, nil
}

// checkAvailable is the size from which an allocation of base pages is refused when it cannot fit
// into the memory that is left: populating it would not fail but wake the kernel's OOM killer,
// which may choose any process. Smaller ones are not worth the look.
const checkAvailable = 64 << 20

func allocMemfd(o Options, hugePage int) (m Mapping, err error) {
	page := sys.PageSize
	m = Mapping{Kind: Host, FD: -1, NUMANode: -1}
	if hugePage != 0 {
		page, m.Kind = hugePage, Huge
	}
	if o.Size > math.MaxInt-page {
		return m, fmt.Errorf("size %d bytes overflows when rounded to pages of %d", o.Size, page)
	}
	size := (o.Size + page - 1) &^ (page - 1)
	lazy := o.Lazy && hugePage == 0
	node := o.NUMANode.Number()
	if node >= 0 {
		if err := checkNode(node); err != nil {
			return m, err
		}
	}
	if !lazy && hugePage == 0 && size >= checkAvailable {
		if avail, err := sys.MemAvailable(); err == nil && uint64(size) > avail {
			return m, fmt.Errorf("%d bytes are needed but only %d are available (MemAvailable in /proc/meminfo); ask "+
				"for less, or for Lazy memory if most of it stays untouched", size, avail)
		}
		if node >= 0 {
			if avail, err := sys.NodeAvailable(node); err == nil && uint64(size) > avail {
				return m, fmt.Errorf("%d bytes are needed but only %d are available on NUMA node %d; ask for less, "+
					"for another node, or for Lazy memory if most of it stays untouched", size, avail, node)
			}
		}
	}
	fd, err := sys.MemfdCreate("penstock:"+o.Name, int64(size), hugePage)
	if err != nil {
		if hugePage != 0 {
			err = hugeError(err, size, hugePage, node)
		}
		return m, err
	}
	var b []byte
	free := func() error {
		var e error
		if b != nil {
			e = sys.Munmap(b)
		}
		return errors.Join(e, sys.Close(fd))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, free())
		}
	}()
	// Sealed against shrinking before another process can hold it: a mapping of it can then never
	// fault with SIGBUS.
	if err := sys.AddSeals(fd, sys.SealShrink|sys.SealGrow); err != nil {
		return m, err
	}
	// Mapping huge pages reserves them; a shortage is ENOMEM here. On one node of several it shows
	// only when populating.
	b, err = sys.Mmap(fd, 0, size, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		if hugePage != 0 {
			err = hugeError(err, size, hugePage, node)
		}
		return m, err
	}
	if node >= 0 {
		if err := sys.BindNode(b, node); err != nil {
			return m, bindError(err, node)
		}
	}
	if !lazy {
		start := time.Now()
		if err := populate(b, fd); err != nil {
			if hugePage != 0 {
				err = hugeError(err, size, hugePage, node)
			}
			return m, err
		}
		m.Populate, m.Present = time.Since(start), true
		if m.NUMANode, err = placed(b, page, node); err != nil {
			return m, err
		}
	} else if node >= 0 {
		m.Note = fmt.Sprintf("bound to NUMA node %d; not verified, because the pages are not present yet", node)
	}
	m.Bytes, m.Size, m.PageSize, m.FD, m.Free = b, uint64(size), page, fd, free
	return m, nil
}

// populate makes all pages present for writing, with an error and not a signal when there are not
// enough.
func populate(b []byte, fd int) error {
	err := sys.Populate(b, true)
	if sys.IsErrno(err, sys.EINVAL) {
		// Linux before 5.14: fallocate takes the pages, so that touching them later cannot fail.
		return sys.Allocate(fd, int64(len(b)))
	}
	return err
}

// hugeError explains a failure to get huge pages: how many there are, how many it takes, and how to
// get them.
func hugeError(cause error, size, page, node int) error {
	need := size / page
	h, err := sys.HugePageState(page, node)
	if err != nil {
		return fmt.Errorf("%d huge pages of %d bytes: %w: %v (%v)", need, page, ErrUnavailable, err, cause)
	}
	where := ""
	if node >= 0 {
		where = fmt.Sprintf(" on NUMA node %d", node)
	}
	if h.Free+h.More >= need { // enough of them: something else is wrong
		return fmt.Errorf("%d huge pages of %d bytes%s, with %d free: %w", need, page, where, h.Free, cause)
	}
	return fmt.Errorf("%d huge pages of %d bytes are needed%s and %d are free: %w; as root: %s (%v)", need, page, where,
		h.Free, ErrUnavailable, h.Command(need), cause)
}
