package paired

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"time"
)

// maxFile is the size of the largest file that is read, in bytes.
const maxFile = 32 << 20

// Write writes the report as JSON. It fails for a report that Read would refuse, but for one: rows
// that Failed are written, so that what was measured is not lost.
func (r *Report) Write(w io.Writer) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("paired: report not written: %w", err)
	}
	return writeJSON(w, r)
}

// numbers matches a list of numbers that was written one to a line. A string holds no line break in
// JSON.
var numbers = regexp.MustCompile(`\[\n\s*(?:[-+.0-9eE]+,\n\s*)*[-+.0-9eE]+\n\s*\]`)

func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	b = numbers.ReplaceAllFunc(b, func(list []byte) []byte {
		return []byte("[" + strings.Join(strings.Fields(string(list[1:len(list)-1])), " ") + "]")
	})
	_, err = w.Write(append(b, '\n'))
	return err
}

// ReadFile reads a result file; errors begin with its name.
func ReadFile(name string) (*Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// Read reads a report and checks everything in it that can be checked: unknown, repeated and
// missing fields, numbers out of range, and statistics and verdicts that do not follow from the
// samples are errors that say where.
func Read(in io.Reader) (*Report, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("more than %d MiB: not a result file", maxFile>>20)
	}
	// What kind of file this is comes first: another schema has other fields.
	var head struct {
		Format string `json:"format"`
		Schema int    `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, positioned(b, err)
	}
	if head.Format != Format {
		return nil, fmt.Errorf("format %q: expected %q: not a file that penstock bench --output wrote", head.Format,
			Format)
	}
	if head.Schema != Schema {
		return nil, (&Report{Format: Format, Schema: head.Schema}).validate()
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := strict(b, d, reflect.TypeFor[Report](), ""); err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, positioned(b, err)
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	return r, nil
}

// positioned puts line and column before an error of package json that knows its offset.
func positioned(b []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s: %w", position(b, syntax.Offset), err)
	case errors.As(err, &kind):
		return fmt.Errorf("%s: %s: %s is not a %s", position(b, kind.Offset), kind.Field, kind.Value, kind.Type)
	}
	return err
}

func position(b []byte, offset int64) string {
	b = b[:min(max(0, offset), int64(len(b)))]
	line := bytes.Count(b, []byte("\n")) + 1
	return fmt.Sprintf("line %d, column %d", line, len(b)-bytes.LastIndexByte(b, '\n'))
}

var leaf = reflect.TypeFor[time.Time]()

// strict walks a value beside the type it is for and refuses what package json would let pass:
// fields that are unknown (also by the case of a letter), repeated or missing, and null.
func strict(b []byte, d *json.Decoder, t reflect.Type, where string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tok, err := d.Token()
	if err != nil {
		return positioned(b, err)
	}
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%s: %s", position(b, d.InputOffset()),
			strings.TrimPrefix(where+": "+fmt.Sprintf(format, a...), ": "))
	}
	switch open, _ := tok.(json.Delim); {
	case tok == nil:
		return bad("null: expected a value")
	case open == '{':
		if t.Kind() != reflect.Struct || t == leaf {
			return bad("an object is not what is expected here")
		}
		return strictObject(b, d, t, where, bad)
	case open == '[':
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return bad("a list is not what is expected here")
		}
		n := 0
		for ; d.More(); n++ {
			if err := strict(b, d, t.Elem(), fmt.Sprintf("%s[%d]", where, n)); err != nil {
				return err
			}
		}
		if t.Kind() == reflect.Array && n != t.Len() {
			return bad("%d values: expected %d", n, t.Len())
		}
		_, err = d.Token()
		return err
	}
	return nil // whether a plain value fits is seen when it is decoded
}

func strictObject(b []byte, d *json.Decoder, t reflect.Type, where string, bad func(string, ...any) error) error {
	fields, required := map[string]reflect.Type{}, map[string]bool{}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = t.Field(i).Type
		required[name] = options == ""
	}
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return positioned(b, err)
		}
		key, _ := tok.(string)
		at, ok := fields[key]
		if !ok {
			return bad("unknown field %q", key)
		}
		if seen[key] {
			return bad("field %q is there twice", key)
		}
		seen[key] = true
		if err := strict(b, d, at, strings.TrimPrefix(where+"."+key, ".")); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return positioned(b, err)
	}
	for i := range t.NumField() { // in the order of the type, so that the message is always the same
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if required[name] && !seen[name] {
			return bad("field %q is missing", name)
		}
	}
	return nil
}

func joinErrors(errs []error) error { return errors.Join(errs...) }
