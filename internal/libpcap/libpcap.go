// Package libpcap compiles filters in tcpdump's language to classic BPF, by libpcap.
package libpcap

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Names are the names by which the loader finds the library: of Debian, and of others.
var Names = []string{"libpcap.so.0.8", "libpcap.so.1"}

// ErrUnavailable is wrapped where there is no libpcap.
var ErrUnavailable = errors.New("libpcap is not available")

const (
	maxExpression = 64 << 10
	maxProgram    = 1 << 20 // instructions
	anyNetmask    = 0xffffffff
)

// library is libpcap, which stays loaded. It compiles one expression at a time.
type library struct {
	mu                                         sync.Mutex
	openDead, compile, geterr, freecode, close dl.Func
}

var load = sync.OnceValues(func() (*library, error) { return open(Names...) })

func open(names ...string) (*library, error) {
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, fmt.Errorf("libpcap: %w: install the package libpcap0.8 (Debian), or libpcap (others): %w",
			ErrUnavailable, err)
	}
	l := &library{}
	for name, f := range map[string]*dl.Func{"pcap_open_dead": &l.openDead, "pcap_compile": &l.compile,
		"pcap_geterr": &l.geterr, "pcap_freecode": &l.freecode, "pcap_close": &l.close} {
		if *f, err = lib.Symbol(name); err != nil {
			return nil, errors.Join(fmt.Errorf("libpcap: %w: %w", ErrUnavailable, err), lib.Close())
		}
	}
	return l, nil
}

// program is struct bpf_program.
type program struct {
	length       uint32
	instructions uintptr
}

// Compile compiles an expression for packets of a link type. The program returns snap for packets
// that match, and 0 for others. Names of hosts are looked up as the system does it, which may ask
// the network. The error has the expression and libpcap's words.
func Compile(expression string, link uint16, snap int) ([]sys.FilterInstruction, error) {
	l, err := load()
	if err != nil {
		return nil, err
	}
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("a filter of %d bytes: expected at most %d", len(expression), maxExpression)
	}
	if strings.ContainsRune(expression, 0) {
		return nil, fmt.Errorf("filter %q: expected text without zero bytes", expression)
	}
	mem, err := dl.Alloc(16 + len(expression) + 1)
	if err != nil {
		return nil, err
	}
	defer dl.Free(mem)
	copy(mem[16:], expression)
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.openDead.Call2(uintptr(link), uintptr(snap))
	if h == 0 {
		return nil, errors.New("libpcap: pcap_open_dead: no memory")
	}
	defer l.close.Call1(h)
	if int32(l.compile.Call5(h, dl.Address(mem), dl.Address(mem[16:]), 1, anyNetmask)) != 0 {
		return nil, fmt.Errorf("filter %q: %s: expected an expression of pcap-filter(7), such as \"udp port 53\"",
			expression, dl.GoString(l.geterr.Call1(h)))
	}
	defer l.freecode.Call1(dl.Address(mem))
	p := dl.At[program](dl.Address(mem))
	if p.length == 0 || p.length > maxProgram {
		return nil, fmt.Errorf("filter %q: libpcap made %d instructions: expected 1 to %d", expression, p.length,
			maxProgram)
	}
	const size = 8 // of struct bpf_insn
	out := make([]sys.FilterInstruction, p.length)
	for i := range out {
		out[i] = *dl.At[sys.FilterInstruction](p.instructions + uintptr(i*size))
	}
	return out, nil
}
