package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Everything that a command prints as JSON goes through this file: encoding/json leaves characters
// in strings as they are on which a terminal acts, such as U+009B and U+202E, and names and texts
// of peers may have any.

// printJSON prints a document for people and programs, indented.
func printJSON(w io.Writer, v any) error {
	return encodeJSON(w, v, "  ")
}

// printJSONLine prints a document as one line.
func printJSONLine(w io.Writer, v any) error {
	return encodeJSON(w, v, "")
}

func encodeJSON(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(printableJSON{w})
	e.SetIndent("", indent)
	return e.Encode(v)
}

// printableJSON escapes control, format and other characters that are not printable as JSON does in
// strings, \u009b. It expects whole characters in each Write, as json.Encoder and fmt.Fprint make
// them.
type printableJSON struct{ w io.Writer }

func (p printableJSON) Write(doc []byte) (int, error) {
	out := make([]byte, 0, len(doc))
	for rest := doc; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == '\n' || strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			out = append(out, rest[:n]...)
		} else {
			for _, u := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		}
		rest = rest[n:]
	}
	if _, err := p.w.Write(out); err != nil {
		return 0, err
	}
	return len(doc), nil
}
