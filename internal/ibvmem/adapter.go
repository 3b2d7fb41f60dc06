package ibvmem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// ErrNoWay is wrapped by refusals of memory that the device cannot reach. The error says of each
// way what is missing.
var ErrNoWay = errors.New("the adapter cannot reach this memory")

// Way is how a device reaches memory.
type Way uint8

// The ways.
const (
	None       Way = iota // not at all, or not known yet
	Host                  // memory of this process, pinned
	DMABuf                // memory of another device, shared by the kernel
	PeerMemory            // memory of another device, by its address
)

var wayNames = [...]string{"none", "host memory", "dma-buf", "peer memory"}

func (w Way) String() string {
	if int(w) < len(wayNames) {
		return wayNames[w]
	}
	return fmt.Sprintf("way(%d)", uint8(w))
}

// Options are for tests.
type Options struct {
	// Tree is the machine's files, rooted at /; nil: this machine's.
	Tree fs.FS
}

// Adapter registers memory at one device. Its methods may be called from any goroutine.
type Adapter struct {
	ctx  *ibv.Context
	tree fs.FS

	mu      sync.Mutex // guards what follows
	answers map[weak.Pointer[mem.Region]]answer
	between map[string]string // what is between the device and an accelerator, by the accelerator's PCI address
	peer    bool              // a module for peer memory is loaded
	looked  time.Time         // when that was looked for
}

// answer is what is known of a region.
type answer struct {
	way  Way
	err  error     // why there is none
	when time.Time // of err
}

const (
	// askAgain is how long a refusal holds: a module may be loaded, or room become free.
	askAgain = 10 * time.Second
	// lookAgain is how long the list of modules is taken to be as it was.
	lookAgain = time.Second
	// maxAnswers bounds what the Adapter remembers of regions; it forgets regions that are gone
	// first.
	maxAnswers = 256
)

// New makes an Adapter of an open device, which outlives it. It holds nothing that must be closed.
func New(ctx *ibv.Context, o Options) *Adapter {
	if o.Tree == nil {
		o.Tree = os.DirFS("/")
	}
	return &Adapter{ctx: ctx, tree: o.Tree, answers: map[weak.Pointer[mem.Region]]answer{},
		between: map[string]string{}}
}

// Register makes a span's memory known to the device, in a domain of its context. The caller holds
// a lease on the region until the registration is closed. Memory of accelerators that cannot be
// reached is ErrNoWay; what the device refuses otherwise is its error.
func (a *Adapter) Register(pd *ibv.PD, s mem.Span, access ibv.Access) (*ibv.MR, error) {
	if b := s.Bytes(); b != nil {
		return pd.RegMR(ibv.MRSpec{Addr: sys.Address(b), Length: s.Len, Access: access})
	}
	mr, way, err := a.register(pd, s, access)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remember(s.Region, answer{way, err, time.Now()})
	return mr, err
}

func (a *Adapter) register(pd *ibv.PD, s mem.Span, access ibv.Access) (*ibv.MR, Way, error) {
	var mr *ibv.MR
	noBuf, noPeer := a.lacks(s.Region)
	if noBuf == nil {
		if mr, noBuf = byDMABuf(pd, s, access); noBuf == nil {
			return mr, DMABuf, nil
		}
	}
	if noPeer == nil {
		if mr, noPeer = pd.RegMR(ibv.MRSpec{Addr: uintptr(s.Region.Direct().Addr + s.Off), Length: s.Len,
			Access: access, Peer: true}); noPeer == nil {
			return mr, PeerMemory, nil
		}
	}
	return nil, None, a.refuse(s.Region, noBuf, noPeer)
}

// lacks is why each way is closed before it is tried; nil where it may be open.
func (a *Adapter) lacks(r *mem.Region) (noBuf, noPeer error) {
	if noBuf = r.HasDMABuf(); noBuf == nil {
		attr, err := a.ctx.Attr()
		if noBuf = err; err == nil {
			noBuf = attr.DMABuf
		}
	}
	switch {
	case r.Direct().Addr == 0:
		noPeer = errNoAddress
	case !a.peerModule():
		noPeer = errNoModule
	}
	return noBuf, noPeer
}

var (
	errNoAddress = errors.New("the memory has no address by which a module of the kernel could know it")
	errNoModule  = errors.New("no module for it is loaded: modprobe nvidia-peermem")
)

// synthetic is where the first byte of a region without a device address lies for requests.
// Addresses of different regions may be the same: keys tell them apart.
const synthetic = 1 << 40

// byDMABuf exports whole pages around a span as a dma-buf and registers the span of them: the
// device refuses requests for other bytes of the pages, as it does with pages of the host.
func byDMABuf(pd *ibv.PD, s mem.Span, access ibv.Access) (*ibv.MR, error) {
	page, d := uint64(max(s.Region.PageSize(), sys.PageSize)), s.Region.Direct()
	lead := uint64(0) // how far into a page of its allocation the region begins
	if d.Before > 0 || d.After > 0 {
		lead = d.Addr % page
	}
	from := (lead + s.Off) / page * page // both from the beginning of that page on
	to := (lead + s.Off + s.Len + page - 1) / page * page
	if lead > d.Before && from == 0 || to > lead+s.Region.Len()+d.After {
		return nil, fmt.Errorf("region %q has %d bytes, with %d before and %d after them in the same allocation, and "+
			"a dma-buf whole pages of %d: allocate a multiple of that",
			s.Region.Name(), s.Region.Len(), d.Before, d.After, page)
	}
	fd, err := s.Region.DMABuf(int64(from-lead), to-from)
	if err != nil {
		return nil, err
	}
	at := d.Addr
	if at == 0 || (at-lead)%uint64(sys.PageSize) != 0 {
		at = synthetic + lead
	}
	mr, err := pd.RegMR(ibv.MRSpec{Length: s.Len, IOVA: at + s.Off, Access: access,
		DMABuf: &ibv.DMABuf{FD: fd, Offset: lead + s.Off - from}})
	if cerr := sys.Close(fd); cerr != nil && err == nil { // the registration has a reference of its own
		err = errors.Join(cerr, mr.Close())
	}
	if err != nil {
		return nil, err
	}
	return mr, nil
}

// Check says what is known of a region without trying anything: nil where the device reaches it, or
// may. It costs next to nothing for host memory, and a look at a table for the rest.
func (a *Adapter) Check(r *mem.Region) error {
	if r.All().Bytes() != nil { // the CPU reaches it
		return nil
	}
	a.mu.Lock()
	x, ok := a.known(r)
	a.mu.Unlock()
	if ok {
		return x.err
	}
	noBuf, noPeer := a.lacks(r)
	if noBuf == nil || noPeer == nil {
		return nil
	}
	err := a.refuse(r, noBuf, noPeer)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remember(r, answer{None, err, time.Now()})
	return err
}

// Reaches finds out whether the device reaches a region, by registering its first page where that
// was not done yet.
func (a *Adapter) Reaches(pd *ibv.PD, r *mem.Region) error {
	if err := a.Check(r); err != nil {
		return err
	}
	if w := a.Way(r); w != None || r.Len() == 0 {
		return nil
	}
	lease, err := r.Lease()
	if err != nil {
		return err
	}
	defer lease.Release()
	access := ibv.LocalWrite
	if r.ReadOnly() {
		access = 0
	}
	mr, err := a.Register(pd, mem.Span{Region: r, Len: min(r.Len(), uint64(max(r.PageSize(), sys.PageSize)))}, access)
	if err != nil {
		return err
	}
	return mr.Close()
}

// Way is how the device was found to reach a region; None while that is not known.
func (a *Adapter) Way(r *mem.Region) Way {
	if r.All().Bytes() != nil {
		return Host
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x, _ := a.known(r)
	return x.way
}

// known looks a region up. Holds a.mu.
func (a *Adapter) known(r *mem.Region) (answer, bool) {
	x, ok := a.answers[weak.Make(r)]
	if ok && x.err != nil && time.Since(x.when) > askAgain {
		return answer{}, false
	}
	return x, ok
}

// remember keeps an answer. Holds a.mu.
func (a *Adapter) remember(r *mem.Region, x answer) {
	if len(a.answers) >= maxAnswers {
		for p := range a.answers {
			if q := p.Value(); q == nil || q.Closed() {
				delete(a.answers, p)
			}
		}
		if len(a.answers) >= maxAnswers {
			clear(a.answers) // they are found out again
		}
	}
	a.answers[weak.Make(r)] = x
}

// Unable is what to tell users of a device that is not Able.
const Unable = "the card reaches no memory of accelerators: it takes no dma-bufs, and no module for peer memory is " +
	"loaded (modprobe nvidia-peermem)"

// Able reports whether the device may reach memory of accelerators at all: it takes dma-bufs, or a
// module for peer memory is loaded.
func (a *Adapter) Able() bool {
	attr, err := a.ctx.Attr()
	return err == nil && attr.DMABuf == nil || a.peerModule()
}

// Explain says of regions of accelerators, of maxExplained at most, how the device reaches them,
// and what lies between both, or why it does not.
func (a *Adapter) Explain() (out []string) {
	a.mu.Lock()
	known := map[*mem.Region]answer{}
	for p, x := range a.answers {
		if r := p.Value(); r != nil && !r.Closed() {
			known[r] = x
		}
	}
	a.mu.Unlock()
	for r, x := range known {
		if x.err != nil {
			out = append(out, x.err.Error())
			continue
		}
		s := fmt.Sprintf("region %q by %s", r.Name(), x.way)
		if b := a.detours(r.Direct().Bus); b != "" {
			s += "; between them: " + b
		}
		out = append(out, s)
	}
	slices.Sort(out)
	if more := len(out) - maxExplained; more > 0 {
		out = append(out[:maxExplained], fmt.Sprintf("and %d regions more", more))
	}
	return out
}

// maxExplained bounds what Explain says.
const maxExplained = 8

// card is the device's PCI address, "" where it is on no bus.
func (a *Adapter) card() string {
	to, err := fs.ReadLink(a.tree, "sys/class/infiniband/"+a.ctx.Name()+"/device")
	if err != nil {
		return ""
	}
	return path.Base(to)
}
