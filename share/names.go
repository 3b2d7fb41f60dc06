package share

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the largest length of a name in bytes.
const MaxName = 255

// maxComponent bounds an encoded component of a path, so that the suffixes of this package fit behind it into the 255 bytes
// that file systems allow.
const maxComponent = 200

// Suffixes of the files that a fetch leaves beside its destination until it is complete.
const (
	// PartialSuffix ends the name of a file that is not complete.
	PartialSuffix = ".partial"
	// StateSuffix ends the name of the text file that says what the partial file is and how far it is good.
	StateSuffix = ".partial.state"
)

// ErrName means that a name cannot be one: it is empty, too long, or the path is not the encoding of a name.
var ErrName = errors.New("share: bad name")

const (
	emptyComponent = "%_" // stands for a component without bytes
	continued      = "%+" // ends a component of a path that is only a part of the name's component
	hexDigits      = "0123456789ABCDEF"
)

// PathOf maps a name, which may come from any peer, to a relative path with slashes that is safe to create: no component is
// empty, ".", "..", longer than 200 bytes, begins with a dot, a dash, a tilde or a space, ends with a dot or a space, is
// reserved on Windows, ends with a suffix of this package, or has any byte but printable ASCII without <>:"\|?*. What is not
// allowed becomes %XX, as in RFC 3986, section 2.1; so does '%' itself. Slashes separate components; an empty component
// becomes "%_", and one that is too long is continued in the next after "%+".
//
// The mapping is injective, NameOf reverses it, and most file names map to themselves. Non-ASCII text is encoded too, because
// file systems that normalise Unicode would take two names for one. Case is kept: on a file system without it, two names can
// still meet.
//
// A name may be the beginning of another one ("a" and "a/b"). Both paths are safe, but only one can be a file: creating the
// second fails.
func PathOf(name string) (string, error) {
	if len(name) == 0 || len(name) > MaxName {
		return "", fmt.Errorf("%w: %d bytes, expected 1 to %d", ErrName, len(name), MaxName)
	}
	var out []byte
	for i, c := range strings.Split(name, "/") {
		if i > 0 {
			out = append(out, '/')
		}
		out = appendComponent(out, c)
	}
	return string(out), nil
}

func appendComponent(out []byte, c string) []byte {
	if c == "" {
		return append(out, emptyComponent...)
	}
	first, dot := reserved(c), suffix(c)
	escaped := func(i int) bool {
		return !allowed(c[i]) || i == dot || i == 0 && (first || strings.IndexByte("-.~ ", c[i]) >= 0) || i == len(c)-1 && (c[i] == '.' || c[i] == ' ')
	}
	length := 0
	for i := 0; i < len(c); i++ {
		escape, n := escaped(i), 1
		if escape {
			n = 3
		}
		if length+n > maxComponent-len(continued) && restLonger(c, i, length, escaped) {
			out = append(out, continued...)
			out = append(out, '/')
			length = 0
			// What begins a component of the path must be harmless there too, wherever it was in the name.
			escape, n = true, 3
		}
		if escape {
			out = append(out, '%', hexDigits[c[i]>>4], hexDigits[c[i]&15])
		} else {
			out = append(out, c[i])
		}
		length += n
	}
	return out
}

// restLonger reports whether the encoding of c[i:] does not fit behind length bytes.
func restLonger(c string, i, length int, escaped func(int) bool) bool {
	for ; i < len(c); i++ {
		length++
		if escaped(i) {
			length += 2
		}
		if length > maxComponent {
			return true
		}
	}
	return false
}

// allowed reports whether a byte may stand for itself in the middle of a component.
func allowed(b byte) bool {
	return b >= ' ' && b < 0x7f && strings.IndexByte(`%<>:"\|?*`, b) < 0
}

// reserved reports whether Windows takes a component for a device: its part before the first dot, without spaces at the end.
func reserved(c string) bool {
	base, _, _ := strings.Cut(c, ".")
	base = strings.ToUpper(strings.TrimRight(base, " "))
	switch base {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$":
		return true
	}
	return len(base) == 4 && (base[:3] == "COM" || base[:3] == "LPT") && base[3] >= '0' && base[3] <= '9'
}

// suffix returns where the last dot of a suffix of this package is in c, or -1 if c does not end with one.
func suffix(c string) int {
	for _, s := range []string{StateSuffix, PartialSuffix} {
		if len(c) >= len(s) && strings.EqualFold(c[len(c)-len(s):], s) {
			return strings.LastIndexByte(c, '.')
		}
	}
	return -1
}

// NameOf is the name whose path is p. It fails with ErrName if PathOf makes that path of no name.
func NameOf(p string) (string, error) {
	var name []byte
	joined := true // the next component continues the one before
	for _, c := range strings.Split(p, "/") {
		if !joined {
			name = append(name, '/')
		}
		c, joined = strings.CutSuffix(c, continued)
		if c == emptyComponent && !joined {
			continue
		}
		for i := 0; i < len(c); i++ {
			if c[i] != '%' {
				name = append(name, c[i])
				continue
			}
			if i+2 >= len(c) {
				return "", fmt.Errorf("%w: path %q", ErrName, p)
			}
			hi, lo := strings.IndexByte(hexDigits, c[i+1]), strings.IndexByte(hexDigits, c[i+2])
			if hi < 0 || lo < 0 {
				return "", fmt.Errorf("%w: path %q", ErrName, p)
			}
			name = append(name, byte(hi<<4|lo))
			i += 2
		}
	}
	// One name has one path: whatever else decodes to it is refused.
	if back, err := PathOf(string(name)); err != nil || back != p {
		return "", fmt.Errorf("%w: path %q", ErrName, p)
	}
	return string(name), nil
}

// Printable makes a text of a peer, or any other, safe to print: control characters (so also the escape sequences of
// terminals and line breaks), invisible and direction-changing characters, and bytes that are not UTF-8 are shown as in a Go
// string, \x1b or \u202e, and so is the backslash. Texts above 1,024 bytes are cut and end with "...".
func Printable(s string) string {
	const most = 1024
	clean := len(s) <= most
	for _, r := range s {
		if !clean {
			break
		}
		clean = r != '\\' && r != utf8.RuneError && unicode.IsPrint(r)
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if b.Len() > most {
			b.WriteString("...")
			break
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1, r < 0x80 && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\\':
			b.WriteString(`\\`)
		case !unicode.IsPrint(r) && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}
