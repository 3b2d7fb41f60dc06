package engine

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/mem"
)

// Stage is a Receiver that takes its packets from another one, and gives them changed, in another
// order, fewer, or as they are. It stands between a receive queue and the application, and may
// stand on another stage; a Poller serves the last one, or the application does (NewRx). The
// contract:
//
// A stage takes packets only in TryRecv and Arm, which its owner calls, so it takes none before the
// first of them. It has no limit of its own to how long it may keep packets, but each one costs the
// engine a slot. The burst given to TryRecv is the caller's; the packets that are in it already are
// not the stage's to touch.
//
// Arm arms what the stage reads from with the same Waker, also while the stage wants nothing of it:
// that the queue is closed is a Wake too. A stage that may swallow packets promises nothing (see
// Receiver):
//
//	if s.from.Arm(w) {
//		w.Wake()
//	}
//	return false
//
// A stage that waits for a time or a device wakes the same Waker by that; a Waker is the stage's
// until TryRecv or Arm is called again.
//
// When what it reads from says that it has ended or failed, a stage first gives what it still
// keeps, and then that error. When the stage itself fails, its error names the stage and comes from
// then on, behind what is whole; packets that it took and cannot give are released and counted.
//
// A queue and its stages are closed from the application on, and the queue last: Close releases
// what the stage keeps, as DropClosed, and leaves alone what it reads from. Calling it again
// returns nil.
type Stage interface {
	Receiver
	// Stats fills s with what the stage gave (Packets, Bytes), what it dropped, and what it copied.
	// Any goroutine may call it, also after Close.
	Stats(s *RxStats)
	Close() error
}

// Count is a number that a stage keeps beside its RxStats, such as that of its whole batches.
type Count struct {
	Name string `json:"name"`
	N    uint64 `json:"n"`
	// a level, such as what is in a ring, which also falls; otherwise N only grows
	Gauge bool `json:"gauge,omitempty"`
}

// StageCounter is a Stage that has some.
type StageCounter interface {
	// Counts are always the same, in the same order. Any goroutine may call it, also after Close.
	Counts() []Count
}

// StageSpec says which stage to make. It is inert.
type StageSpec struct {
	Queue string       // name of the receive queue, for messages
	Port  Capabilities // of the port, or of its engine when it is not open yet
	// Pools are the memory regions of the configuration by name, for a stage that needs memory of
	// its own; nil until Open.
	Pools map[string]*mem.Pool
	// Options are the stage's own, a struct of its package; nil means its defaults.
	Options any
}

// StageKind is a kind of stage that a configuration file can name. A program hands the kinds that
// it has to system.Open.
type StageKind struct {
	Name string // the word of the file; options are behind it as in an address: NAME?KEY=VALUE&...
	Doc  string // what it does, in a line
	// Options are those of files, as of engines (Spec.Options): their Fields are of the struct that
	// New returns a pointer to, which is what StageSpec.Options takes. New is nil where there are
	// none.
	Options []Option
	New     func() any
	// Check says why there is no such stage for a queue: an error that wraps ErrUnsupported or
	// ErrInvalid. nil takes every queue.
	Check func(spec StageSpec) error
	// Open makes a stage on from, which it owns until it is closed. Open takes no packet.
	Open func(from Receiver, spec StageSpec) (Stage, error)
}

// read reads the options behind the name.
func (k *StageKind) read(text string) (any, error) {
	s := Spec{Name: "stage " + k.Name, Options: k.Options, PortOptions: func(string) any { return k.New() }}
	if err := s.CheckOptions(); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", s.Name, err, ErrInvalid)
	}
	a, err := s.Address(text)
	if err != nil || k.New == nil {
		return nil, err
	}
	return s.Port(k.Name, a.Settings)
}

// FindStage is the kind that text names, with the options behind the name in spec.Options. The
// error wraps ErrNotFound and names what there is, says which option is wrong, or is that of Check.
func FindStage(kinds []StageKind, text string, spec *StageSpec) (k *StageKind, err error) {
	var names []string
	name, _, _ := strings.Cut(text, "?")
	for i := range kinds {
		if k = &kinds[i]; k.Name != name {
			names = append(names, k.Name)
			continue
		}
		if spec.Options, err = k.read(text); err == nil && k.Check != nil {
			err = k.Check(*spec)
		}
		return k, err
	}
	if names == nil {
		names = []string{"none"}
	}
	return nil, fmt.Errorf("engine: no stage is called %q; there is: %s: %w", name, strings.Join(names, ", "),
		ErrNotFound)
}
