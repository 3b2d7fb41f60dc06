package packet

import (
	"errors"
	"fmt"
)

// MAC is an Ethernet address. It is comparable and can be a map key.
type MAC [6]byte

// BroadcastMAC is the address of every host on the link.
var BroadcastMAC = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ErrMAC says that a text is not an Ethernet address.
var ErrMAC = errors.New("not an Ethernet address of 6 bytes: write it like 02:00:5e:10:00:01")

// ParseMAC reads an Ethernet address of six bytes in the forms of [net.ParseMAC]:
// 02:00:5e:10:00:01, 02-00-5e-10-00-01, 0200.5e10.0001 or 02005e100001, in either case. Every byte
// has two digits. Errors wrap ErrMAC.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	group, sep := 2, byte(0)
	switch len(s) {
	case 17:
		sep = s[2]
	case 14:
		group, sep = 4, '.'
	case 12:
		group = 12
	}
	ok := sep == ':' || sep == '-' || group > 2
	for at, n := 0, 0; ok && n < len(m); {
		hi, lo := digit(s[at]), digit(s[at+1])
		m[n] = hi<<4 | lo
		ok = hi|lo < 16
		at, n = at+2, n+1
		if 2*n%group == 0 && n < len(m) {
			ok = ok && s[at] == sep
			at++
		}
	}
	if !ok {
		return MAC{}, fmt.Errorf("packet: %q: %w", s, ErrMAC)
	}
	return m, nil
}

// digit returns the value of a hexadecimal digit, or a value with a bit above the lower four.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

const digits = "0123456789abcdef"

// String is the address in lower case with colons: 02:00:5e:10:00:01.
func (m MAC) String() string {
	b, _ := m.AppendText(make([]byte, 0, 17))
	return string(b)
}

// AppendText appends String to b; it implements [encoding.TextAppender].
func (m MAC) AppendText(b []byte) ([]byte, error) {
	for i, v := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[v>>4], digits[v&15])
	}
	return b, nil
}

// MarshalText returns String as bytes; it implements [encoding.TextMarshaler].
func (m MAC) MarshalText() ([]byte, error) { return m.AppendText(make([]byte, 0, 17)) }

// UnmarshalText reads what ParseMAC reads; it implements [encoding.TextUnmarshaler]. On an error m
// keeps its value.
func (m *MAC) UnmarshalText(text []byte) error {
	v, err := ParseMAC(string(text))
	if err == nil {
		*m = v
	}
	return err
}

// IsZero reports whether all bytes are zero, which no interface uses.
func (m MAC) IsZero() bool { return m == MAC{} }

// IsMulticast reports whether the address names a group of hosts (the broadcast address too).
func (m MAC) IsMulticast() bool { return m[0]&1 != 0 }

// IsBroadcast reports whether the address names all hosts.
func (m MAC) IsBroadcast() bool { return m == BroadcastMAC }

// IsLocal reports whether the address was assigned by an administrator or by software, not by a
// manufacturer.
func (m MAC) IsLocal() bool { return m[0]&2 != 0 }
