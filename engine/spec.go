package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/option"
)

// Spec describes an engine: all that a program knows of it before it opens a port. Configuration
// files, addresses, checks of a machine, benchmarks and documentation follow from it. It is data:
// any goroutine may read it, and nothing changes it.
type Spec struct {
	Name    string   // the word of configurations: "xdp"
	Aliases []string // other words for it, DAQIRI's for instance
	Doc     string   // one line
	// Absent says why this build does not have the engine, and what to use until then; "" where it
	// is built. New is nil then.
	Absent string
	// New makes the engine of a process: one that opens every address of its kind.
	New func() Engine
	// Section is the key of the engine's options in an interface of a configuration file; ""
	// becomes Name.
	Section string
	DAQIRI  string // DAQIRI's name of that section, "" where it has none
	// Schemes are those of its addresses: "udp" of udp://[::]:5000. Addresses without one are
	// names: of a network interface where Needs.Interface, else as the engine says.
	Schemes []string
	// Bus says that a place on the PCI bus (0000:3b:00.0) is an address of this engine, if no
	// engine is named.
	Bus bool
	// Card is the interface, or the place on the PCI bus, in an address that Spec.Address has read:
	// "" where it has neither. nil: that is Where, if Needs.Interface.
	Card    func(a Address) string
	Options []Option
	// PortOptions returns a pointer to the zero struct of options for an address with this scheme,
	// RxOptions and TxOptions to that of a queue: what the Fields of Options are fields of. The
	// structs are what PortSpec.Options, RxSpec.Options and TxSpec.Options take. nil where there
	// are no options.
	PortOptions          func(scheme string) any
	RxOptions, TxOptions func() any
	Capabilities         Capabilities // the most that its ports can do
	Needs                Needs
	// Slots are the sizes in bytes of those slots of pools that the engine uses in place, smallest
	// first; packets in others are copied. nil: all.
	Slots []int
	// Rings are the settings with which a port holds that many packets that wait for the
	// application; nil where RxSpec.Depth is all it takes.
	Rings func(packets int) Settings
	// Pair makes an engine of its own with two addresses that reach each other on any machine, for
	// benchmarks and tests; nil where there is none. The caller closes it.
	Pair func(seed uint64) (e Engine, from, to string, done func() error, err error)
}

// Needs are what an engine needs of a machine. The doctor asks for it.
type Needs struct {
	Interface bool // its addresses are network interfaces, or their cards
	IP        bool // its addresses are IP addresses
	Buffers   bool // of the kernel's sockets
	Takes     bool // a port that receives and is not isolated takes what comes from the kernel
	Frames    bool // whole frames from the driver as they came from the wire: nothing that joins them
	XDP       bool // XDP in the driver
	RDMA      bool // an RDMA device
	VFIO      bool // a driver in user space has the card; huge pages and the IOMMU are for it
	Pins      bool // packet memory is locked
	// Capabilities are those of the process (man 7 capabilities), Libraries the files that are
	// loaded.
	Capabilities []string
	Libraries    []string
	Kernel       [2]int // at least, major and minor; 0.0: any
}

// Built reports whether the engine is in this build.
func (s *Spec) Built() bool { return s.Absent == "" }

// FileSection is the key of the engine's options in an interface of a configuration file.
func (s *Spec) FileSection() string {
	if s.Section != "" {
		return s.Section
	}
	return s.Name
}

// Option is the option with that key, for addresses with that scheme; nil if there is none.
func (s *Spec) Option(key, scheme string) *Option {
	return option.List(s.Options).Find(key, scheme)
}

// Address is an address that Spec.Address has read.
type Address struct {
	Text     string   // all of it
	Scheme   string   // "" of a name
	Where    string   // between the scheme and the options: a host and port, a name
	Settings Settings // truths are "true" or "false"
}

// Address reads an address: NAME?KEY=VALUE&... or SCHEME://WHERE?KEY=VALUE&.... A truth may stand
// without a value; a list repeats its key. The error is a *SettingError.
func (s *Spec) Address(text string) (Address, error) {
	a := Address{Text: text, Where: text}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		a.Scheme, a.Where = scheme, rest
		if !slices.Contains(s.Schemes, scheme) {
			return Address{}, &SettingError{Engine: s.Name, Address: text, Expected: s.forms(),
				Wrong: fmt.Sprintf("addresses with %s:// are not of this engine", scheme)}
		}
	}
	where, query, asked := strings.Cut(a.Where, "?")
	a.Where = where
	if !asked {
		return a, nil
	}
	settings, err := option.List(s.Options).Read(query, a.Scheme)
	if err != nil {
		err.Engine, err.Address = s.Name, text
		return Address{}, err
	}
	a.Settings = settings
	return a, nil
}

// Device is the network interface, or the place on the PCI bus, in an address as a configuration
// has it: "" where it has neither, as that of a virtual device. An address that cannot be read is
// itself.
func (s *Spec) Device(address string) string {
	a, err := s.Address(address)
	switch {
	case err != nil:
		return address
	case s.Card != nil:
		return s.Card(a)
	}
	return a.Where
}

// forms are what addresses look like.
func (s *Spec) forms() string {
	var out []string
	for _, x := range s.Schemes {
		out = append(out, x+"://")
	}
	if s.Needs.Interface {
		out = append(out, "the name of a network interface")
	}
	return strings.Join(out, ", ")
}

// Read reads the address of a port, and sets the fields of into that the address has options for;
// into is a pointer to a struct as PortOptions makes it. Options of queues, and those without a
// field, stay in Address.Settings.
func (s *Spec) Read(address string, into any) (Address, error) {
	a, err := s.Address(address)
	if err == nil {
		err = s.set(OfPort, a, a.Settings, into)
	}
	return a, err
}

// Port is PortSpec.Options of settings, for an address: a struct of the engine's; nil where there
// are none. The error is a *SettingError.
func (s *Spec) Port(address string, settings Settings) (any, error) {
	a, err := s.Address(address)
	if err != nil || s.PortOptions == nil || len(settings) == 0 {
		return nil, err
	}
	into := s.PortOptions(a.Scheme)
	if err := s.set(OfPort, Address{Scheme: a.Scheme}, settings, into); err != nil {
		return nil, err
	}
	return pointed(into), nil
}

// Rx is RxSpec.Options of the settings of a queue, over those that the port's address has for all
// its queues; Tx is TxSpec.Options.
func (s *Spec) Rx(address Address, settings Settings) (any, error) {
	return s.queue(OfRx, s.RxOptions, address, settings)
}

// Tx is as Rx, for transmit queues.
func (s *Spec) Tx(address Address, settings Settings) (any, error) {
	return s.queue(OfTx, s.TxOptions, address, settings)
}

// RxDefaults gives a receive queue without options those that the port's address has for all its
// queues; TxDefaults a transmit queue.
func (s *Spec) RxDefaults(address string, spec *RxSpec) error {
	a, err := s.Address(address)
	if err == nil && spec.Options == nil {
		spec.Options, err = s.Rx(a, nil)
	}
	return err
}

// TxDefaults is as RxDefaults, for transmit queues.
func (s *Spec) TxDefaults(address string, spec *TxSpec) error {
	a, err := s.Address(address)
	if err == nil && spec.Options == nil {
		spec.Options, err = s.Tx(a, nil)
	}
	return err
}

func (s *Spec) queue(of Of, options func() any, a Address, settings Settings) (any, error) {
	mine := func(key string) bool { o := s.Option(key, a.Scheme); return o != nil && o.Of == of }
	all := Settings{}
	for k, v := range a.Settings {
		if mine(k) {
			all[k] = v
		}
	}
	for k, v := range settings {
		all[k] = v
	}
	if options == nil || len(all) == 0 {
		return nil, nil
	}
	into := options()
	if err := s.set(of, a, all, into); err != nil {
		return nil, err
	}
	return pointed(into), nil
}

// set sets the fields of options that settings have.
func (s *Spec) set(of Of, a Address, settings Settings, into any) error {
	if err := option.List(s.Options).Set(of, a.Scheme, settings, into); err != nil {
		err.Engine, err.Address = s.Name, a.Text
		return err
	}
	return nil
}

// CannotIsolate is the error of an engine without rules for a port that is to be isolated.
func CannotIsolate(name string, spec *PortSpec, why string) error {
	return &SettingError{Engine: name, Address: spec.Address, Path: "rx.flow_isolation", Wrong: why, Expected: "false",
		Hint: "Isolated is for ports with rules", Err: ErrUnsupported}
}
