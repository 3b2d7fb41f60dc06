package bench

import (
	"time"

	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// The two processes of a benchmark talk in JSON lines over the second one's standard input and
// output: a request, then its reply. Nothing of this happens while a clock runs.

// request is what the measuring process asks of the second one.
type request struct {
	Do string `json:"do"`

	Node *nodeOptions `json:"node,omitempty"` // "start"

	// "alloc", "free" and what reads or writes memory: an export of the second process; "answer": a
	// network
	Name  string `json:"name,omitempty"`
	Size  uint64 `json:"size,omitempty"`
	Huge  bool   `json:"huge,omitempty"`
	Place Place  `json:"place,omitzero"` // "alloc"

	Area    area    `json:"area,omitzero"`    // "fill", "verify"
	Pattern pattern `json:"pattern,omitzero"` // "draw", "check": the same for memory of any kind

	Queues int    `json:"queues,omitempty"` // "accept": how many, named q0, q1 and so on
	Mode   string `json:"mode,omitempty"`   // "accept": "spin" or "event"
	Echo   bool   `json:"echo,omitempty"`   // "accept": answer each put with a put
	Pin    bool   `json:"pin,omitempty"`    // "accept": bind the serving thread to the second processor
}

// reply answers a request.
type reply struct {
	Err      string        `json:"err,omitempty"`
	Addr     string        `json:"addr,omitempty"`     // "start", "answer"
	Checked  uint64        `json:"checked,omitempty"`  // "verify", "check", "stop": bytes
	CPU      time.Duration `json:"cpu,omitempty"`      // "usage"
	Mallocs  uint64        `json:"mallocs,omitempty"`  // "usage"
	Syscalls uint64        `json:"syscalls,omitempty"` // "usage"
	Note     string        `json:"note,omitempty"`     // "alloc"
	Device   string        `json:"device,omitempty"`   // "alloc": the accelerator's name
	Why      string        `json:"why,omitempty"`      // "alloc": what it was taken instead of
}

// nodeOptions configure both processes' nodes alike.
type nodeOptions struct {
	Paths      []string      `json:"paths,omitempty"` // as drivers.All takes them
	NoChecksum bool          `json:"no_checksum,omitempty"`
	Secret     []byte        `json:"secret,omitempty"` // of this run, to encrypt with
	Spin       time.Duration `json:"spin,omitempty"`   // of the node's own goroutine
}

// budget is the memory for tensors that peers push, of which benchmarks have none: machines with
// little memory run them too.
const budget = 16 << 20

// drivers are those of a node of this process, each by itself.
func (n *nodeOptions) drivers(make Drivers) ([]setup.Driver, error) {
	if make == nil {
		make = drivers.New
	}
	all, err := make(drivers.All(n.Paths...), false)
	return withSecret(all, n.Secret), err
}

// area is memory made of equal slots, each of which holds the last message that was put there: a
// stamp of eight bytes that counts messages, then the pattern of the seed at this place. Slots
// smaller than a stamp have only the pattern.
type area struct {
	Seed   uint64   `json:"seed"`
	Slot   uint64   `json:"slot"`             // bytes
	Stamps []uint64 `json:"stamps,omitempty"` // of each slot; the number of slots
}
