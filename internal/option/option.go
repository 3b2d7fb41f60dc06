// Package option describes options as data: their keys, the values that they take, and the fields
// of a struct that they set. Engines, stages and transfer paths describe theirs with it; command
// lines, configuration files, checks and documentation follow from the descriptions.
package option

import (
	"errors"
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

// The owners of options. Those of a stage or of a path are OfPort.
const (
	OfPort Of = iota
	OfRx      // a receive queue; in an address: all of the port
	OfTx      // a transmit queue
)

// Option describes one option.
type Option struct {
	Key    string // in files and addresses
	DAQIRI string // DAQIRI's name of it, where it is another
	// Section is the key of the section of a file that has it; "" is that of the engine or the
	// path. Of a queue it is always the engine's.
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
	Form     string // of a Text, for messages and documentation: "a device such as mlx5_0"; "": "a text"
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
	// "busy_poll", "chains", "receive_buffer_bytes", "send_buffer_bytes", "packet_bytes", "rdma"
	// (the device of that name); "zero_copy" and "native" where it is the word AsksFor.
	Asks, AsksFor string
}

// Is reports whether the option is for addresses with a scheme.
func (o *Option) Is(scheme string) bool {
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
	return o.Form
}

// Value reads a value: a bool, an int64 (Int, Bytes), a time.Duration, a netip.Addr, a string, or
// what Parse makes. The error is an *Error without an owner.
func (o *Option) Value(text string) (any, error) {
	v, err := o.value(text)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (o *Option) value(text string) (any, *Error) {
	bad := func(wrong string) (any, *Error) {
		return nil, &Error{Key: o.Key, Value: text, Wrong: wrong, Expected: o.Expects()}
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
func (o *Option) check(text string) *Error {
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
func (o *Option) set(options any, text string) *Error {
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

// put puts one value into a field. The tests of the tables of drivers see that types fit.
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

// List is the options of one engine, stage or path.
type List []Option

// Find is the option with that key, for addresses with that scheme; nil if there is none.
func (l List) Find(key, scheme string) *Option {
	for i := range l {
		if o := &l[i]; (o.Key == key || o.DAQIRI == key && key != "") && o.Is(scheme) {
			return o
		}
	}
	return nil
}

func (l List) keys(scheme string) (out []string) {
	for i := range l {
		if l[i].Is(scheme) {
			out = append(out, l[i].Key)
		}
	}
	return out
}

// Settings are options as text, by their keys: "ring": "4096". A list has commas between its
// values.
type Settings map[string]string

// Escape is a value as Read takes it.
func Escape(value string) string {
	return strings.NewReplacer("%", "%25", "&", "%26", "+", "%2B").Replace(value)
}

// Read reads KEY=VALUE&.... A truth may stand without a value, and becomes true or false; a list
// repeats its key. The error is an *Error without an owner.
func (l List) Read(query, scheme string) (Settings, *Error) {
	out := Settings{}
	for part := range strings.SplitSeq(query, "&") {
		key, value, has := strings.Cut(part, "=")
		bad := func(wrong, expected, hint string) (Settings, *Error) {
			return nil, &Error{Key: key, Wrong: wrong, Expected: expected, Hint: hint}
		}
		text, err := url.QueryUnescape(value)
		if err != nil {
			_, e := bad("it is not escaped as in URLs", "", "")
			e.Value = value
			return nil, e
		}
		value = text
		o := l.Find(key, scheme)
		switch {
		case o == nil:
			names := l.keys(scheme)
			if near := input.Nearest(key, names); near != "" {
				return bad("there is no such key", "", fmt.Sprintf("did you mean %s?", near))
			}
			return bad("there is no such key", strings.Join(names, ", "), "")
		case !has && o.Type == Bool:
			value = "true"
		case !has:
			return bad("it has no value", o.Expects(), "")
		}
		given, twice := out[o.Key]
		switch {
		case twice && !o.List:
			return bad("it is there twice", "each key once", "")
		case twice:
			value = given + "," + value
		}
		if err := o.check(value); err != nil {
			return nil, err
		}
		if o.Type == Bool {
			value = strconv.FormatBool(value == "true" || value == "1")
		}
		out[o.Key] = value
	}
	return out, nil
}

// Set sets the fields of a struct, to which into points, that settings of one owner have. The error
// is an *Error without an owner.
func (l List) Set(of Of, scheme string, settings Settings, into any) *Error {
	for i := range l {
		o := &l[i]
		text, ok := settings[o.Key]
		if !ok || !o.Is(scheme) || o.Of != of || o.Field == "" {
			continue
		}
		if err := o.set(into, text); err != nil {
			return err
		}
	}
	for key := range settings {
		if l.Find(key, scheme) == nil {
			return &Error{Key: key, Wrong: "there is no such option", Expected: strings.Join(l.keys(scheme), ", ")}
		}
	}
	return nil
}

// Check says what is wrong with the descriptions: keys, ranges, fields that the structs do not have
// or of another type. made returns a pointer to the struct of an owner; nil where it has none.
func (l List) Check(schemes []string, made func(of Of, scheme string) any) error {
	for i := range l {
		o := &l[i]
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
			if p := &l[k]; p.Key == o.Key && p.Of == o.Of {
				return bad("it is there twice")
			}
		}
		if o.Default != "" {
			if err := o.check(o.Default); err != nil {
				return bad("its Default: %v", err)
			}
		}
		of := o.Schemes
		if of == nil {
			of = append([]string{""}, schemes...)
		}
		for _, scheme := range of {
			if o.Field == "" {
				continue
			}
			options := made(o.Of, scheme)
			if options == nil {
				return bad("nothing makes its struct")
			}
			if err := o.fits(options); err != nil {
				return bad("%v", err)
			}
		}
	}
	return nil
}

// fits says whether the fields of an option are there and take its values.
func (o *Option) fits(options any) error {
	sample := map[Type]reflect.Type{Bool: reflect.TypeFor[bool](), Int: reflect.TypeFor[int64](),
		Bytes: reflect.TypeFor[int64](), Time: reflect.TypeFor[time.Duration](), Word: reflect.TypeFor[string](),
		Text: reflect.TypeFor[string](), IP: reflect.TypeFor[netip.Addr]()}[o.Type]
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

// ErrInvalid is what an Error wraps that has no other Err. Package engine names it.
var ErrInvalid = errors.New("engine: invalid")

// Error says what is wrong with an address, or with an option.
type Error struct {
	Engine   string // the engine, or what else the option belongs to; "" where a caller says it
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
func (e *Error) Error() string {
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
func (e *Error) Problem() string {
	switch {
	case e.Key != "" && e.Value != "":
		return fmt.Sprintf("%s is %q: %s", e.Key, e.Value, e.Wrong)
	case e.Key != "":
		return fmt.Sprintf("%s: %s", e.Key, e.Wrong)
	}
	return e.Wrong
}

// Unwrap makes it match Err, or ErrInvalid.
func (e *Error) Unwrap() error {
	if e.Err != nil {
		return e.Err
	}
	return ErrInvalid
}
