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

// maxStem is how many bytes of a component leave room for the suffixes of this package in the 255
// that file systems allow.
const maxStem = 255 - len(StateSuffix)

// Suffixes of the files that a fetch leaves beside its destination until it is complete. They
// follow the name of the destination. Where they do not fit behind it, they follow the beginning of
// that name, a ~ and a hash of all of it.
const (
	// PartialSuffix ends the name of a file that is not complete.
	PartialSuffix = ".partial"
	// StateSuffix ends the name of the text file that says what the partial file is and how far it
	// is good.
	StateSuffix = ".partial.state"
)

// ErrName means that a name cannot be one: it is empty, too long, or dangerous as a path.
var ErrName = errors.New("share: bad name")

// ownPrefix begins the names of directories and files that this package keeps beside others.
const ownPrefix = ".penstock-"

// PathOf is the path of a file whose name, which may come from any peer, is name: the name itself,
// if it is harmless below any directory. Names are UTF-8, of 1 to MaxName bytes. Slashes separate
// components, of which none is empty, "." or "..", begins as what this package keeps beside files
// does, ends with a suffix of it, or has a control character: these move the cursor of terminals,
// and end lines. All else is the file system's: on one that takes two names for one, such as those
// that know no case, the second file finds the first one there.
//
// A name may be the beginning of another one ("a" and "a/b"). Both paths are safe, but only one can
// be a file: creating the second fails.
func PathOf(name string) (string, error) {
	if why := unfit(name); why != "" {
		return "", fmt.Errorf("%w: %q: %s", ErrName, Printable(name), why)
	}
	return name, nil
}

// unfit says why a name cannot be one; "" if it can.
func unfit(name string) string {
	switch {
	case len(name) == 0 || len(name) > MaxName:
		return fmt.Sprintf("a name of %d bytes, expected 1 to %d", len(name), MaxName)
	case !utf8.ValidString(name):
		return "a name that is not UTF-8"
	}
	for c := range strings.SplitSeq(name, "/") {
		if why := danger(c); why != "" {
			return "dangerous as a path: " + why
		}
	}
	return ""
}

// danger says what is dangerous about a component of a path.
func danger(c string) string {
	switch folded := strings.ToLower(c); {
	case c == "":
		return "it begins or ends with a slash, or has one after another"
	case c == ".", c == "..":
		return fmt.Sprintf("%q is a part of it", c)
	case len(c) > MaxName: // of a link's text
		return fmt.Sprintf("a part of it has %d bytes, expected at most %d", len(c), MaxName)
	case strings.HasPrefix(folded, ownPrefix):
		return fmt.Sprintf("what begins with %q is Penstock's own", ownPrefix)
	case strings.HasSuffix(folded, PartialSuffix), strings.HasSuffix(folded, StateSuffix):
		return fmt.Sprintf("what ends with %q or %q is a file that is not complete", PartialSuffix, StateSuffix)
	case strings.ContainsFunc(c, unicode.IsControl):
		return "it has a control character"
	}
	return ""
}

// partialOf is the path of the partial file of a file, and stateOf that of its state, both in the
// directory of the file.
func partialOf(file string) string { return stem(file) + PartialSuffix }
func stateOf(file string) string   { return stem(file) + StateSuffix }

// stem is what suffixes of this package follow: a path itself, or one with a shortened name that is
// as long as the suffixes permit. Names with the same beginning have different ones, and what is
// UTF-8 stays so.
func stem(file string) string {
	base := file[strings.LastIndexByte(file, '/')+1:]
	if len(base) <= maxStem {
		return file
	}
	end := "~" + shortHash(base)
	cut := maxStem - len(end)
	for cut > 0 && !utf8.RuneStart(base[cut]) {
		cut--
	}
	return strings.TrimSuffix(file, base) + base[:cut] + end
}

// Printable makes a text of a peer, or any other, safe to print: control characters (so also the
// escape sequences of terminals and line breaks), invisible and direction-changing characters, and
// bytes that are not UTF-8 are shown as in a Go string, \x1b or \u202e, and so is the backslash.
// Texts above 1,024 bytes are cut and end with "...".
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
