package feed

import (
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
)

// Policy says what happens to packets when the kernel does not keep up.
type Policy uint8

// The policies.
const (
	Block   Policy = iota // they stay in the receive queue, until it drops them and counts
	DropNew               // the newest are dropped
	// the oldest that the kernel has not claimed are dropped; only where the kernel runs on a
	// processor
	DropOld
)

var policyWords = []string{"block", "drop-new", "drop-old"}

// String is the word of files.
func (p Policy) String() string {
	if int(p) < len(policyWords) {
		return policyWords[p]
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// Options are the options of a stage, given as engine.StageSpec.Options. Kernel, and Pool or
// Memory, are needed.
type Options struct {
	Kernel  string    // parse, echo, power or gemm; with File the name of the kernel in it
	File    string    // of a user's kernel: OpenCL C (*.cl) or PTX (*.ptx)
	Memory  string    // the pool that the queue receives into, by its name in StageSpec.Pools
	Pool    *mem.Pool // the same, for programs
	Slots   int       // of each ring; 0 means 1024. Rounded up to a power of two
	Rings   int       // and groups of the kernel, one for each; 0 means 1. Packets of one flow go to one ring
	Items   int       // work-items of a group; 0 means 64, and 1 on a processor
	Row     int       // bytes of a row of results; 0 for none
	Weights int       // bytes of the weights; 0 for none. They are zero until SetWeights
	// WeightsFile holds the weights, and is read again when it changes. Weights is its size, which
	// must stay, or 0.
	WeightsFile string
	Param       uint64 // the kernel's own number: for power and gemm see docs/feed.md
	Policy      Policy
	Ordered     bool // results come in the order of the packets, also of several rings
	Batch       bool // a launch for what has come, instead of a persistent kernel
}

const (
	maxRings  = 1 << 10
	maxWindow = 1 << 20 // packets with the kernel
	maxRow    = 1 << 30
	maxMemory = 1 << 40
)

// Kind is the stage for files.
var Kind = engine.StageKind{Name: "feed",
	Doc: "hands packets to a kernel of an accelerator that stays, and gives what it makes of them", Open: New,
	Check: checkSpec,
	New:   func() any { return new(Options) },
	Options: []engine.Option{
		{Key: "kernel", Type: engine.Text, Field: "Kernel", Needed: true, Doc: "`parse`, `echo`, `power` or `gemm`; with `file` the name of the kernel in it."},
		{Key: "memory", Type: engine.Text, Field: "Memory", Needed: true, Doc: "The memory region that the queue receives into: `host_pinned` of a GPU."},
		{Key: "file", Type: engine.Text, Field: "File", Doc: "A kernel of your own: OpenCL C (`.cl`) or PTX (`.ptx`)."},
		{Key: "slots", Type: engine.Int, Min: 0, Max: maxWindow, Unit: "packets", Default: "1024", Field: "Slots", Doc: "Packets that a ring holds."},
		{Key: "rings", Type: engine.Int, Min: 0, Max: maxRings, Default: "1", Field: "Rings",
			Doc: "Rings, and groups of the kernel; one flow goes to one ring."},
		{Key: "items", Type: engine.Int, Min: 0, Max: 1024, Field: "Items", Doc: "Work-items of a group; 64, and 1 on a processor."},
		{Key: "row", Type: engine.Bytes, Min: 0, Max: maxRow, Default: "0", Field: "Row",
			Doc: "The row of results of each packet, which becomes its second segment."},
		{Key: "weights", Type: engine.Bytes, Min: 0, Max: maxMemory, Default: "0", Field: "Weights",
			Doc: "Bytes of the weights of the kernel, zero until the program sets them."},
		{Key: "weights_file", Type: engine.Text, Field: "WeightsFile",
			Doc: "A file with the weights, which is read again when it changes; `weights` is its size then."},
		{Key: "param", Type: engine.Int, Min: 0, Max: 1<<63 - 1, Default: "0", Field: "Param", Doc: "The kernel's own number."},
		{Key: "policy", Type: engine.Word, Words: policyWords, Default: "block", Field: "Policy",
			Doc: "What is dropped when the kernel does not keep up: nothing here, the newest, or the oldest packets."},
		{Key: "ordered", Type: engine.Bool, Default: "false", Field: "Ordered", Doc: "Results come in the order of the packets."},
		{Key: "batch", Type: engine.Bool, Default: "false", Field: "Batch", Doc: "A launch for what has come, instead of a persistent kernel."},
	},
}

func checkSpec(spec engine.StageSpec) error {
	o, err := engine.Given[Options](spec.Options)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return fmt.Errorf("feed: queue %q: %w", spec.Queue, err)
	}
	return nil
}

// check fills in the defaults.
func (o *Options) check() error {
	bad := func(what string, got any, want string) error {
		return fmt.Errorf("%s is %v: expected %s: %w", what, got, want, engine.ErrInvalid)
	}
	if o.Slots == 0 {
		o.Slots = 1024
	}
	if o.Rings == 0 {
		o.Rings = 1
	}
	switch {
	case o.Kernel == "":
		return bad("kernel", `""`, "parse, echo, power, gemm, or the kernel in file")
	case o.Memory == "" && o.Pool == nil:
		return bad("memory", `""`, "the memory region that the queue receives into")
	case o.Slots < 2 || o.Slots > maxWindow:
		return bad("slots", o.Slots, fmt.Sprintf("2 to %d", maxWindow))
	case o.Rings < 1 || o.Rings > maxRings || o.Rings*o.Slots > maxWindow:
		return bad("rings", o.Rings, fmt.Sprintf("1 to %d, and %d packets in all of them", maxRings, maxWindow))
	case o.Items < 0 || o.Items > 1024:
		return bad("items", o.Items, "1 to 1024")
	case o.Row < 0 || o.Row > maxRow || o.Row%4 != 0:
		return bad("row", o.Row, "a multiple of 4 bytes")
	case o.Weights < 0 || o.Weights > maxMemory || o.Weights%16 != 0:
		return bad("weights", o.Weights, "a multiple of 16 bytes")
	case o.Policy > DropOld:
		return bad("policy", o.Policy, strings.Join(policyWords, ", "))
	}
	o.Slots = 1 << bits.Len(uint(o.Slots-1))
	return nil
}

// program is the kernel.
func (o *Options) program() (*driver.Program, error) {
	if o.File == "" {
		return kernels.FeedNamed(o.Kernel)
	}
	text, err := os.ReadFile(o.File)
	if err != nil {
		return nil, fmt.Errorf("the kernel's file: %w", err)
	}
	switch {
	case strings.HasSuffix(o.File, ".cl"):
		return kernels.FeedProgram(o.Kernel, string(text), "", 0, 0), nil
	case strings.HasSuffix(o.File, ".ptx"):
		version, sm := ptxVersion.FindSubmatch(text), ptxTarget.FindSubmatch(text)
		if version == nil || sm == nil {
			return nil, fmt.Errorf("the kernel's file %s has no .version or no .target sm_: expected PTX: %w", o.File,
				engine.ErrInvalid)
		}
		major, _ := strconv.Atoi(string(version[1]))
		minor, _ := strconv.Atoi(string(version[2]))
		arch, _ := strconv.Atoi(string(sm[1]))
		return kernels.FeedProgram(o.Kernel, "", string(text), arch, 10*major+minor), nil
	}
	return nil, fmt.Errorf("the kernel's file %s: expected OpenCL C (.cl) or PTX (.ptx): %w", o.File, engine.ErrInvalid)
}

var (
	ptxVersion = regexp.MustCompile(`(?m)^\.version (\d{1,2})\.(\d)`)
	ptxTarget  = regexp.MustCompile(`(?m)^\.target sm_(\d{2,3})`)
)

// device is the accelerator whose kernels reach the pool that the queue receives into.
func (o *Options) device(spec engine.StageSpec) (*mem.Pool, *gpu.Memory, error) {
	pool := o.Pool
	if pool == nil {
		if pool = spec.Pools[o.Memory]; pool == nil {
			return nil, nil, fmt.Errorf("there is no memory region %q: %w", o.Memory, engine.ErrNotFound)
		}
	}
	m := gpumem.Memory(pool.Region())
	if m == nil || m.Kind() == gpu.PinnedMemory {
		return nil, nil, fmt.Errorf("memory region %q is not memory that kernels reach: expected kind host_pinned of "+
			"a GPU: %w", pool.Name(), engine.ErrUnsupported)
	}
	if !m.Context().Info().Processor && o.Policy == DropOld {
		return nil, nil, fmt.Errorf("policy drop-old: %s is behind a link whose atomic operations are not atomic to "+
			"the CPU: take drop-new: %w", m.Context().Device(), engine.ErrUnsupported)
	}
	return pool, m, nil
}
