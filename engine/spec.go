package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
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
	for i := range s.Options {
		if o := &s.Options[i]; (o.Key == key || o.DAQIRI == key && key != "") && o.of(scheme) {
			return o
		}
	}
	return nil
}

// Settings are options as text, by their keys: "ring": "4096". A list has commas between its
// values.
type Settings map[string]string

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
	bad := func(key, value, wrong, expected, hint string) (Address, error) {
		return Address{}, &SettingError{Engine: s.Name, Address: text, Key: key, Value: value, Wrong: wrong,
			Expected: expected, Hint: hint}
	}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		a.Scheme, a.Where = scheme, rest
		if !slices.Contains(s.Schemes, scheme) {
			return bad("", "", fmt.Sprintf("addresses with %s:// are not of this engine", scheme), s.forms(), "")
		}
	}
	where, query, asked := strings.Cut(a.Where, "?")
	a.Where = where
	if !asked {
		return a, nil
	}
	a.Settings = Settings{}
	for part := range strings.SplitSeq(query, "&") {
		key, value, has := strings.Cut(part, "=")
		value, err := unescape(value)
		if err != nil {
			return bad(key, value, err.Error(), "", "")
		}
		o := s.Option(key, a.Scheme)
		switch {
		case o == nil:
			names := s.keys(a.Scheme)
			if near := input.Nearest(key, names); near != "" {
				return bad(key, "", "there is no such key", "", fmt.Sprintf("did you mean %s?", near))
			}
			return bad(key, "", "there is no such key", strings.Join(names, ", "), "")
		case !has && o.Type == Bool:
			value = "true"
		case !has:
			return bad(key, "", "it has no value", o.Expects(), "")
		}
		given, twice := a.Settings[o.Key]
		switch {
		case twice && !o.List:
			return bad(key, "", "it is there twice", "each key once", "")
		case twice:
			value = given + "," + value
		}
		if err := o.check(value); err != nil {
			err.Engine, err.Address = s.Name, text
			return Address{}, err
		}
		if o.Type == Bool {
			value = strconv.FormatBool(value == "true" || value == "1")
		}
		a.Settings[o.Key] = value
	}
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

func (s *Spec) keys(scheme string) (out []string) {
	for i := range s.Options {
		if o := &s.Options[i]; o.of(scheme) {
			out = append(out, o.Key)
		}
	}
	return out
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
	fail := func(err *SettingError) error {
		err.Engine, err.Address = s.Name, a.Text
		return err
	}
	for i := range s.Options {
		o := &s.Options[i]
		text, ok := settings[o.Key]
		if !ok || !o.of(a.Scheme) || o.Of != of || o.Field == "" {
			continue
		}
		if err := o.set(into, text); err != nil {
			return fail(err)
		}
	}
	for key := range settings {
		if s.Option(key, a.Scheme) == nil {
			return fail(&SettingError{Key: key, Wrong: "there is no such option",
				Expected: strings.Join(s.keys(a.Scheme), ", ")})
		}
	}
	return nil
}

// SettingError says what is wrong with an address, or with an option.
type SettingError struct {
	Engine   string
	Address  string // "" where the option was not in an address
	Key      string // "" of an address as a whole
	Value    string
	Path     string // in an interface of a file, "rx.queues[0].depth"; "" for that of the option, or of the address
	Wrong    string
	Expected string // "" where there is nothing to add
	Hint     string
	Err      error // what it wraps, nil for ErrInvalid
}

// Error implements error.
func (e *SettingError) Error() string {
	b := e.Problem()
	if e.Address != "" {
		b = fmt.Sprintf("address %q: %s", e.Address, b)
	}
	if e.Engine != "" {
		b = e.Engine + ": " + b
	}
	for _, s := range []string{e.Expected, e.Hint} {
		if s != "" && s == e.Expected {
			s = "expected " + s
		}
		if s != "" {
			b += ": " + s
		}
	}
	return b
}

// Problem is what is wrong, without the engine, the address and what is expected.
func (e *SettingError) Problem() string {
	switch {
	case e.Key != "" && e.Value != "":
		return fmt.Sprintf("%s is %q: %s", e.Key, e.Value, e.Wrong)
	case e.Key != "":
		return fmt.Sprintf("%s: %s", e.Key, e.Wrong)
	}
	return e.Wrong
}

// Unwrap makes it match Err, or ErrInvalid.
func (e *SettingError) Unwrap() error {
	if e.Err != nil {
		return e.Err
	}
	return ErrInvalid
}

// CannotIsolate is the error of an engine without rules for a port that is to be isolated.
func CannotIsolate(name string, spec *PortSpec, why string) error {
	return &SettingError{Engine: name, Address: spec.Address, Path: "rx.flow_isolation", Wrong: why, Expected: "false",
		Hint: "Isolated is for ports with rules", Err: ErrUnsupported}
}
