package engine

import (
	"fmt"
	"reflect"

	"github.com/penstock-io/penstock/internal/option"
)

// Option describes one option of an engine or of a stage, with its Type and what it is Of. Settings
// are options as text, by their keys; SettingError says what is wrong with an address, or with an
// option.
type (
	Option       = option.Option
	Settings     = option.Settings
	SettingError = option.Error
	Of           = option.Of
)

// The values of Option.Type and Option.Of.
const (
	Bool   = option.Bool
	Int    = option.Int
	Bytes  = option.Bytes
	Time   = option.Time
	Word   = option.Word
	Text   = option.Text
	IP     = option.IP
	OfPort = option.OfPort
	OfRx   = option.OfRx
	OfTx   = option.OfTx
)

// CheckOptions says what is wrong with the options of a Spec: keys, ranges, fields that the structs
// do not have, or of another type.
func (s *Spec) CheckOptions() error {
	return option.List(s.Options).Check(s.Schemes, func(of option.Of, scheme string) any {
		switch {
		case of == OfPort && s.PortOptions != nil:
			return s.PortOptions(scheme)
		case of == OfRx && s.RxOptions != nil:
			return s.RxOptions()
		case of == OfTx && s.TxOptions != nil:
			return s.TxOptions()
		}
		return nil
	})
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
