package engine

import (
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/input"
)

// Type is what the value of an option is.
type Type uint8

// The types. The Go type of a field is in brackets.
const (
	Bool  Type = iota // true or false, 1 or 0 (bool)
	Int               // a whole number (any integer type)
	Bytes             // a number of bytes, also with a unit: 4KiB (any integer type)
	Time              // a time with a unit: 50us (time.Duration)
	Word              // one of Option.Words (string, or an integer type whose values count them from 0)
	Text              // any text (string), or what Option.Parse makes of it
	IP                // an IP address (netip.Addr)
)

// Of is what an option belongs to.
type Of uint8

// The owners of options.
const (
	OfPort Of = iota
	OfRx      // a receive queue; in an address: all of the port
	OfTx      // a transmit queue
)

// Option describes one option of an engine.
type Option struct {
	Key    string // in files and addresses
	DAQIRI string // DAQIRI's name of it, where it is another
	// Section is the key of the section of a file that has it; "" is that of the engine
	// (Spec.FileSection). Of a queue it is always the engine's.
	Section string
	// Schemes are those of the addresses that it is for; nil for all.
	Schemes []string
	Of      Of
	Type    Type
	List    bool
	Needed  bool // a section of a file has it always
	// Min and Max bound an Int, Bytes, and a Time in nanoseconds.
	Min, Max int64
	Words    []string
	Unit     string // of an Int: "packets"
	Default  string // what stands for it where it is not there, as it is written; "" where Doc says it
	Doc      string
	// Field is the field of the options' struct, or several with spaces between them. A bool is set
	// to whether the value is not zero; "!" in front of the name to the opposite. "": the option is
	// a part of the address, which the engine reads itself.
	Field string
	// Zero is what the field gets for 0, where the zero value of the field is something else.
	Zero int64
	// Parse makes a value of a Text, of the type of the field, or of its elements for a List.
	Parse func(text string) (any, error)
	// Follows names what else in an interface of a file sets it: "rx.queues" is how many receive
	// queues there are, "rx.hardware_timestamps" that key.
	Follows string
	// Asks is what the doctor looks for where it is set: "queues" (the highest of the list),
	// "busy_poll", "chains", "receive_buffer_bytes", "send_buffer_bytes", "packet_bytes";
	// "zero_copy" and "native" where it is the word AsksFor.
	Asks, AsksFor string
}

func (o *Option) of(scheme string) bool {
	return o.Schemes == nil || slices.Contains(o.Schemes, scheme)
}

// Expects says what values there are, for messages.
func (o *Option) Expects() string {
	switch o.Type {
	case Bool:
		return "1 or 0"
	case Int:
		return fmt.Sprintf("a whole number from %d to %d", o.Min, o.Max)
	case Bytes:
		return fmt.Sprintf("a size from %s to %s, such as 4096 or 4KiB", input.Exact(o.Min, input.Sizes, 5),
			input.Exact(o.Max, input.Sizes, 5))
	case Time:
		return fmt.Sprintf("a time from %v to %v, such as 50us or 2ms", time.Duration(o.Min), time.Duration(o.Max))
	case Word:
		return strings.Join(o.Words, ", ")
	case IP:
		return "an IP address"
	}
	return ""
}

// Value reads a value: a bool, an int64 (Int, Bytes), a time.Duration, a netip.Addr, a string, or
// what Parse makes. The error is a *SettingError without an engine.
func (o *Option) Value(text string) (any, error) {
	v, err := o.value(text)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (o *Option) value(text string) (any, *SettingError) {
	bad := func(wrong string) (any, *SettingError) {
		return nil, &SettingError{Key: o.Key, Value: text, Wrong: wrong, Expected: o.Expects()}
	}
	var n int64
	var err error
	switch o.Type {
	case Bool:
		switch text {
		case "true", "1":
			return true, nil
		case "false", "0":
			return false, nil
		}
		return bad("it is neither")
	case Int:
		n, err = strconv.ParseInt(text, 10, 64)
		if err != nil {
			return bad("it is not a whole number")
		}
	case Bytes:
		n, err = input.Quantity(text, input.Sizes, 1)
	case Time:
		n, err = input.Quantity(text, input.Times, 0)
	case Word:
		for _, w := range o.Words {
			if strings.EqualFold(w, text) {
				return w, nil
			}
		}
		_, e := bad("it is not one of the words")
		if near := input.Nearest(text, o.Words); near != "" {
			e.Hint = fmt.Sprintf("did you mean %s?", near)
		}
		return nil, e
	case IP:
		a, err := netip.ParseAddr(text)
		if err != nil {
			return bad("it is not one")
		}
		return a, nil
	default:
		if o.Parse == nil {
			if text == "" {
				return bad("it is empty")
			}
			return text, nil
		}
		v, err := o.Parse(text)
		if err != nil {
			return bad(err.Error())
		}
		return v, nil
	}
	switch {
	case err != nil:
		return bad("it " + err.Error())
	case n < o.Min || n > o.Max:
		return bad("it is out of range")
	case o.Type == Time:
		return time.Duration(n), nil
	}
	return n, nil
}

// check says what is wrong with a text.
func (o *Option) check(text string) *SettingError {
	for _, t := range o.split(text) {
		if _, err := o.value(t); err != nil {
			return err
		}
	}
	return nil
}

func (o *Option) split(text string) []string {
	if !o.List {
		return []string{text}
	}
	return strings.Split(text, ",")
}

// set puts a value into the fields of options, a pointer to a struct.
func (o *Option) set(options any, text string) *SettingError {
	var values []any
	for _, t := range o.split(text) {
		v, err := o.value(t)
		if err != nil {
			return err
		}
		values = append(values, v)
	}
	s := reflect.ValueOf(options).Elem()
	for name := range strings.FieldsSeq(o.Field) {
		plain, not := strings.CutPrefix(name, "!")
		f := s.FieldByName(plain)
		if !o.List {
			o.put(f, values[0], not)
			continue
		}
		f.Set(reflect.MakeSlice(f.Type(), len(values), len(values)))
		for i := range values {
			o.put(f.Index(i), values[i], not)
		}
	}
	return nil
}

// put puts one value into a field. That types fit, TestSpecs in package drivers sees.
func (o *Option) put(f reflect.Value, v any, not bool) {
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	switch x := reflect.ValueOf(v); {
	case f.Kind() == reflect.Bool:
		f.SetBool(!x.IsZero() != not)
	case o.Type == Word && f.CanInt():
		f.SetInt(int64(slices.Index(o.Words, v.(string))))
	case o.Type == Word && f.CanUint():
		f.SetUint(uint64(slices.Index(o.Words, v.(string))))
	case f.CanInt() && x.CanInt() && x.Int() == 0:
		f.SetInt(o.Zero)
	default:
		f.Set(x.Convert(f.Type()))
	}
}

// CheckOptions says what is wrong with the options of a Spec: keys, ranges, fields that the structs
// do not have, or of another type.
func (s *Spec) CheckOptions() error {
	for i := range s.Options {
		o := &s.Options[i]
		bad := func(format string, args ...any) error {
			return fmt.Errorf("option %q: %s", o.Key, fmt.Sprintf(format, args...))
		}
		switch {
		case o.Key == "" || o.Doc == "":
			return bad("it needs a Key and a Doc")
		case (o.Type == Int || o.Type == Bytes || o.Type == Time) && o.Max <= o.Min:
			return bad("its range is empty")
		case o.Type == Word && len(o.Words) == 0:
			return bad("it has no Words")
		}
		for k := range i {
			if p := &s.Options[k]; p.Key == o.Key && p.Of == o.Of {
				return bad("it is there twice")
			}
		}
		if o.Default != "" {
			if err := o.check(o.Default); err != nil {
				return bad("its Default: %v", err)
			}
		}
		schemes := o.Schemes
		if schemes == nil {
			schemes = append([]string{""}, s.Schemes...)
		}
		for _, scheme := range schemes {
			if err := s.fits(o, scheme); err != nil {
				return bad("%v", err)
			}
		}
	}
	return nil
}

// fits says whether the fields of an option are there and take its values.
func (s *Spec) fits(o *Option, scheme string) error {
	if o.Field == "" {
		return nil
	}
	var options any
	switch {
	case o.Of == OfPort && s.PortOptions != nil:
		options = s.PortOptions(scheme)
	case o.Of == OfRx && s.RxOptions != nil:
		options = s.RxOptions()
	case o.Of == OfTx && s.TxOptions != nil:
		options = s.TxOptions()
	default:
		return fmt.Errorf("nothing makes its struct")
	}
	sample := map[Type]reflect.Type{Bool: reflect.TypeFor[bool](), Int: reflect.TypeFor[int64](),
		Bytes: reflect.TypeFor[int64](), Time: reflect.TypeFor[time.Duration](),
		Word: reflect.TypeFor[string](), Text: reflect.TypeFor[string](), IP: reflect.TypeFor[netip.Addr]()}[o.Type]
	for name := range strings.FieldsSeq(o.Field) {
		f, ok := reflect.TypeOf(options).Elem().FieldByName(strings.TrimPrefix(name, "!"))
		if !ok || !f.IsExported() {
			return fmt.Errorf("%T has no field %s", options, name)
		}
		t := f.Type
		if o.List {
			if t.Kind() != reflect.Slice {
				return fmt.Errorf("field %s is no slice", name)
			}
			t = t.Elem()
		}
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		number := t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64
		if t.Kind() != reflect.Bool && o.Parse == nil && !(o.Type == Word && number) &&
			(!sample.ConvertibleTo(t) || number != (sample.Kind() == reflect.Int64)) {
			return fmt.Errorf("field %s is of type %v", name, f.Type)
		}
	}
	return nil
}

// Given is the options that a PortSpec, RxSpec or TxSpec has: nil, a T, or a pointer to one. The
// error wraps ErrInvalid or ErrNil.
func Given[T any](options any) (o T, err error) {
	switch given := options.(type) {
	case nil:
	case T:
		o = given
	case *T:
		if given == nil {
			return o, fmt.Errorf("options of type %T: %w", options, ErrNil)
		}
		o = *given
	default:
		return o, fmt.Errorf("options of type %T: expected %T: %w", options, o, ErrInvalid)
	}
	return o, nil
}

// ReadPort is the address of a port and its options of type T: those that the PortSpec has, and
// over them those in the address (Spec.Read). complete fills in defaults and says what is wrong
// with them.
func ReadPort[T any](s *Spec, p *PortSpec, complete func(*T) error) (a Address, o T, err error) {
	if o, err = Given[T](p.Options); err != nil {
		return a, o, fmt.Errorf("%s: port %q: %w", s.Name, p.Address, err)
	}
	if a, err = s.Read(p.Address, &o); err == nil {
		err = complete(&o)
	}
	return a, o, err
}

// pointed is what a pointer points to.
func pointed(p any) any { return reflect.ValueOf(p).Elem().Interface() }

func unescape(s string) (string, error) {
	t, err := url.QueryUnescape(s)
	if err != nil {
		return s, fmt.Errorf("it is not escaped as in URLs")
	}
	return t, nil
}
